"""Tensors that travel in their own type beside the float32 vector: integers, and what is asked for.

They are values, never changes, and exact to the last bit. In a payload: a table before that of
shapes, and the last stream, their bytes end to end.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .header import DTYPES, MAX_DIMENSIONS, MAX_TENSORS, Reader, named, read_name, varint
from .layout import Layout
from .stages import DIVERGED, Array, Kind, PayloadError, Spec

_U1 = np.dtype("u1")


class Own(NamedTuple):
    """A tensor in its own type, and where it stands among all tensors of the model, from 0."""

    position: int
    name: str
    array: NDArray[Any]


class Declared(NamedTuple):
    """Such a tensor as a payload's table declares it."""

    position: int
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def own_table(own: Sequence[Own]) -> bytes:
    """Return the table; ValueError for a dtype, shape or name that the format does not know."""
    if len(own) > MAX_TENSORS:
        raise ValueError(f"a payload holds at most {MAX_TENSORS} tensors, not {len(own)}")
    parts, last = [varint(len(own))], -1
    for position, name, array in own:
        if array.dtype.name not in DTYPES:
            known = ", ".join(DTYPES)
            raise ValueError(f"tensor {name} has dtype {array.dtype}; known are {known}")
        if array.ndim > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has more than {MAX_DIMENSIONS} dimensions")
        parts += [varint(position - last - 1), bytes((DTYPES.index(array.dtype.name),))]
        parts += [varint(array.ndim), *map(varint, array.shape), named(name)]
        last = position
    return b"".join(parts)


def read_own(
    reader: Reader, model: Layout | None, max_size: int, max_tensors: int = MAX_TENSORS
) -> tuple[Declared, ...]:
    """Read the table: of tensors of the `model`, or of at most 8 ``max_size`` bytes in all."""
    count = reader.varint()
    if not 0 < count <= max_tensors:
        raise PayloadError(f"payload declares {count} tensors of their own type")
    found: list[Declared] = []
    position, nbytes = -1, 0
    for _ in range(count):
        position += reader.varint() + 1
        found.append(_declared(reader, position, max_size))
        nbytes += found[-1].nbytes
        if nbytes > 8 * max_size:
            raise PayloadError(f"payload declares more than the {max_size} entries allowed here")
        if model is not None:
            _expect(found[-1], model)
    return tuple(found)


def _declared(reader: Reader, position: int, max_size: int) -> Declared:
    code, dimensions = reader.byte(), reader.varint()
    if code >= len(DTYPES) or DTYPES[code] == "bfloat16":  # numpy has no such type
        raise PayloadError(f"payload holds the unknown dtype {code}")
    if dimensions > MAX_DIMENSIONS:
        raise PayloadError(f"payload declares a tensor of {dimensions} dimensions")
    shape = tuple([reader.varint() for _ in range(dimensions)])
    if math.prod(d for d in shape if d) > max_size:  # an empty tensor's other dimensions count
        raise PayloadError(f"payload declares more than the {max_size} entries allowed here")
    return Declared(position, read_name(reader), DTYPES[code], shape)


def _expect(declared: Declared, model: Layout) -> None:
    """Raise PayloadError unless the model has this tensor."""
    at = declared.position
    if at >= len(model):
        raise PayloadError(f"payload is for another model: it holds a tensor number {at}")
    name, dtype, shape = model.names[at], model.dtypes[at], tuple(model.shapes[at])
    if (declared.dtype, declared.shape) != (dtype, shape):
        raise PayloadError(
            f"payload is for another model: {name} is {declared.dtype} {declared.shape}, "
            f"{dtype} {shape} is expected"
        )


def own_spec(declared: Sequence[Declared]) -> Spec:
    """Describe the stream of their bytes."""
    return Spec(Kind.BYTES, _U1, sum(each.nbytes for each in declared))


def own_bytes(own: Sequence[Own]) -> Array:
    """Return the stream, (bytes,) uint8. Raises PayloadError for NaN; infinity may be meant."""
    parts = []
    for _, name, array in own:
        if array.dtype.kind == "f" and _has_nan(array):
            raise PayloadError(f"update holds NaN in {name}: {DIVERGED}")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts.append(np.ascontiguousarray(little).reshape(-1).view(_U1))
    return cast(Array, np.concatenate([np.empty(0, _U1), *parts]))


def own_tensors(declared: Sequence[Declared], stream: Array) -> tuple[Own, ...]:
    """Return the tensors in a stream. Raises PayloadError for bytes that are no such values."""
    found, start = [], 0
    for position, name, dtype, shape in declared:
        kind = np.dtype(dtype).newbyteorder("<")
        stop = start + math.prod(shape) * kind.itemsize
        raw = stream[start:stop].copy()  # aligned, and not the payload's any more
        if kind.kind == "b" and raw.size and raw.max() > 1:
            raise PayloadError(f"payload holds a bool that is neither 0 nor 1 in {name}")
        array = raw.view(kind).astype(np.dtype(dtype), copy=False).reshape(shape)
        if kind.kind == "f" and _has_nan(array):
            raise PayloadError(f"payload holds NaN in {name}")
        found.append(Own(position, name, array))
        start = stop
    return tuple(found)


def _has_nan(array: NDArray[Any]) -> bool:
    """Whether an array of floats holds NaN, which is then its minimum; no array is made of it."""
    return bool(array.size and np.isnan(array.min()))
