"""Reads and changes a vector's entries at strictly increasing indices, block by block.

numpy converts the uint32 indices to int64, which needs twice their memory. A payload of a few
hundred bytes may select every entry of a large vector. So these functions never allocate more than
the memory of one block. A block fits into the processor's cache, which halves the time.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Indices = NDArray[np.uint32]
Places = NDArray[np.intp]

BLOCK = 1 << 15  # entries per block; 384 kB with their int64 indices
# Fewer than _PARTS * BLOCK indices are cut into _PARTS smaller blocks of at least _LEAST entries,
# so that temporary arrays stay small.
_LEAST, _PARTS = 1 << 12, 16


def put_at(vector: Vector, indices: Indices, values: Vector) -> None:
    """Set a vector's entries at ``indices`` to (k,) values."""
    if len(indices) <= _LEAST:
        vector[indices] = values
        return
    for here, places in _blocks(indices):
        vector[places] = values[here]


def add_at(vector: Vector, indices: Indices | None, values: Vector) -> None:
    """Add (k,) values to a vector at ``indices`` (None: everywhere)."""
    _change(np.add, vector, indices, values)


def subtract_at(vector: Vector, indices: Indices | None, values: Vector) -> None:
    """Subtract (k,) values from a vector at ``indices`` (None: everywhere)."""
    _change(np.subtract, vector, indices, values)


def increase(indices: Indices) -> bool:
    """Return whether each of (k,) indices is larger than the one before it."""
    for start in range(0, len(indices) - 1, step := _step(indices)):
        here = indices[start : start + step + 1]
        if not np.logical_and.reduce(here[1:] > here[:-1]):
            return False
    return True


def count_up(out: Indices, start: int) -> None:
    """Fill an array with the integers from ``start`` on."""
    for done in range(0, len(out), step := _step(out)):
        here = out[done : done + step]
        here[:] = np.arange(start + done, start + done + len(here), dtype=np.uint32)


def find(indices: Indices, bounds: Sequence[int]) -> list[int]:
    """Return, for each number in ``bounds``, how many of (k,) indices are lower."""
    found: list[int] = indices.searchsorted(np.array(bounds, dtype=np.uint32)).tolist()
    return found


def _step(indices: Indices) -> int:
    return min(BLOCK, len(indices), max(_LEAST, len(indices) // _PARTS)) or 1


def _blocks(indices: Indices) -> Iterator[tuple[slice, Places]]:
    """Cut indices into blocks; yield each block's slice, and its indices as numpy's intp."""
    step = _step(indices)
    work = np.empty(step, dtype=np.intp)
    for start in range(0, len(indices), step):
        here = slice(start, min(start + step, len(indices)))
        places = work[: here.stop - start]
        np.copyto(places, indices[here])
        yield here, places


def _change(how: np.ufunc, vector: Vector, indices: Indices | None, values: Vector) -> None:
    if indices is None:
        how(vector, values, out=vector)
        return
    if len(indices) <= _LEAST:
        vector[indices] = how(vector[indices], values)
        return
    work = np.empty(_step(indices), dtype=vector.dtype)
    for here, places in _blocks(indices):
        found = vector.take(places, out=work[: len(places)], mode="clip")  # "raise" would copy
        vector[places] = how(found, values[here], out=found)
