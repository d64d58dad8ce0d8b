"""Selects a share of the entries, either of the whole model or of each tensor.

Most of a model's tensors have few entries. These small tensors are processed together.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import Indices, Segments, Vector
from .layout import Layout
from .sampling import TINY
from .selection import MOST, Bits, bits_of, check, largest, uniform

SCOPES = ("tensor", "global")


def count(share: float, size: int) -> int:
    """Return ``share`` of ``size`` entries, rounded down; at least 1 unless share or size is 0."""
    # 0.29 * 100 is 28.999999999999996 in floating point, but the result must be 29.
    return min(size, max(1, int(share * size + 1e-6))) if share > 0 else 0


@lru_cache(maxsize=64)
def counts(share: float, layout: Layout) -> NDArray[np.int64]:
    """Return, for each tensor, the number of entries in its ``share``, (T,) int64, read-only."""
    sizes = np.diff(layout.offsets).tolist()
    found = np.array([count(share, size) for size in sizes], dtype=np.int64)
    found.flags.writeable = False
    return found


def largest_in(values: Vector, layout: Layout, share: float, scope: str) -> Indices:
    """Return the indices of the largest magnitudes: a ``share`` of all, or of each tensor's."""
    if scope == "global":
        return largest(values, count(share, len(values)))
    return largest_of_each(values, layout.offsets, counts(share, layout))


@lru_cache(maxsize=64)
def chunks(layout: Layout, share: float, size: int) -> tuple[Segments, NDArray[np.int64]]:
    """Return the bounds of chunks of ``size`` entries, and how many entries are in each ``share``.

    For C chunks these are (C+1,) and (C,) int64, read-only. A tensor's last chunk may be shorter.
    """
    bounds = layout.offsets
    starts = [np.arange(start, stop, size) for start, stop in pairwise(bounds)]
    cuts = np.concatenate([*starts, bounds[-1:]]).astype(np.int64)
    wanted = np.array([count(share, each) for each in np.diff(cuts).tolist()], dtype=np.int64)
    cuts.flags.writeable = wanted.flags.writeable = False
    return cuts, wanted


def largest_in_chunks(values: Vector, layout: Layout, share: float, size: int) -> Indices:
    """Return the indices of the largest magnitudes: a ``share`` of each chunk of ``size``."""
    return largest_of_each(values, *chunks(layout, share, size))


def random_in(layout: Layout, share: float, scope: str, generator: np.random.Generator) -> Indices:
    """Return uniform random indices: a ``share`` of all entries, or of each tensor's entries."""
    if scope == "global":
        return uniform(layout.size, count(share, layout.size), generator)
    tensors = zip(pairwise(layout.offsets.tolist()), counts(share, layout).tolist(), strict=True)
    drawn = [
        uniform(stop - start, chosen, generator) + np.uint32(start)
        for (start, stop), chosen in tensors
    ]
    return np.concatenate([np.empty(0, dtype=np.uint32), *drawn])


def largest_of_each(values: Vector, segments: Segments, counts: NDArray[np.int64]) -> Indices:
    """Return the indices of the ``counts[t]`` largest magnitudes of each tensor t.

    The result is (sum of counts,) uint32, strictly increasing indices into the whole vector. Ties
    and errors are the same as in ``selection.largest``. ``values``: (n,) float32. ``segments``:
    (T+1,) int64, the tensors' bounds in ``values``. ``counts``: (T,) int64.
    """
    bits, parts = bits_of(values, 0), [np.zeros(0, dtype=np.uint32)]
    small, rest = _plan(segments.tobytes(), counts.tobytes())
    together = None if small is None else _largest_of_small(bits, small)
    if small is not None and together is None:
        rest = [*rest, *small.tensors]
    for start, stop, count in rest:
        parts.append(largest(values[start:stop], count) + np.uint32(start))
    found = np.concatenate(parts if together is None else [*parts, together])
    if len(parts) > 1 and small is not None:
        found.sort()
    return found


class _Small(NamedTuple):
    """Small tensors that are processed together, because a call per tensor would be slow.

    One sort processes all small tensors. Each sort key has the tensor's number in the high 32 bits
    and the magnitude in the low 32 bits.
    """

    tensors: list[tuple[int, int, int]]  # start, stop, how many entries to select
    positions: Indices  # (m,) indices of the tensors' entries in the whole vector
    owners: NDArray[np.int64]  # (m,) number of each entry's tensor, in the high 32 bits
    numbers: NDArray[np.intp]  # (m,) number of each entry's tensor
    ranks: NDArray[np.intp]  # (t,) position of each tensor's smallest selected entry after sorting
    total: int  # how many entries to select in all


@lru_cache(maxsize=64)
def _plan(segments: bytes, counts: bytes) -> tuple[_Small | None, list[tuple[int, int, int]]]:
    """Divide the tensors into small ones and others; leave out tensors without selected entries.

    ``counts``: how many entries of each tensor are selected. Each item of the second result holds
    start, stop and count of a tensor.
    """
    bounds = np.frombuffer(segments, dtype=np.int64).tolist()
    wanted = np.frombuffer(counts, dtype=np.int64).tolist()
    cuts = list(zip(bounds[:-1], bounds[1:], wanted, strict=True))
    for start, stop, count in cuts:
        check(stop - start, count)
    cuts = [cut for cut in cuts if cut[2]]
    tensors = [cut for cut in cuts if cut[1] - cut[0] <= TINY]
    if len(tensors) < 2:
        return None, cuts
    sizes = np.array([stop - start for start, stop, _ in tensors])
    numbers = np.arange(len(tensors)).repeat(sizes)
    small = _Small(
        tensors,
        np.concatenate([np.arange(start, stop, dtype=np.uint32) for start, stop, _ in tensors]),
        numbers << 32,
        numbers,
        np.cumsum(sizes) - [count for _, _, count in tensors],
        sum(count for _, _, count in tensors),
    )
    return small, [cut for cut in cuts if cut[1] - cut[0] > TINY]


def _largest_of_small(bits: Bits, small: _Small) -> Indices | None:
    """Return the indices of each small tensor's largest entries; None if ties select too many."""
    keys = (bits.take(small.positions) & MOST) | small.owners
    least = np.sort(keys)[small.ranks]
    mask = keys >= least[small.numbers]
    return small.positions[mask] if np.count_nonzero(mask) == small.total else None
