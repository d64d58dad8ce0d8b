"""Encodes native tensors, which are sent in their own dtype.

All integer tensors are native, and other tensors on request. A payload holds native tensors beside
the float32 vector, without a conversion to float32. A native tensor is sent as its values, exact to
the last bit. `native_differences.py` sends differences instead. A table before the payload's table
of shapes declares the native tensors. The payload's last stream holds their concatenated bytes.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .base import DIVERGED, Array, Kind, PayloadError, Spec
from .layout import Layout
from .wire_header import (
    DTYPES,
    MAX_TENSORS,
    Reader,
    counted,
    named,
    read_name,
    read_shape,
    shaped,
    skip,
    typed,
    varint,
)

_U1 = np.dtype("u1")


class NativeTensor(NamedTuple):
    """A tensor that is sent in its own dtype, and its position among all tensors, from 0."""

    position: int
    name: str
    array: NDArray[Any]


class Declared(NamedTuple):
    """The description of a native tensor in a payload's table."""

    position: int
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def native_table(own: Sequence[NativeTensor]) -> bytes:
    """Encode the table of native tensors; raises ValueError beyond the format's limits."""
    return _table([Declared(p, n, array.dtype.name, array.shape) for p, n, array in own])


def _table(declared: Sequence[Declared]) -> bytes:
    parts, last = [counted(len(declared))], -1
    for position, name, dtype, shape in declared:
        parts += [varint(position - last - 1), typed(name, dtype), shaped(name, shape), named(name)]
        last = position
    return b"".join(parts)


@lru_cache(maxsize=64)
def expected_natives(model: Layout, own: tuple[int, ...]) -> tuple[bytes, tuple[Declared, ...]]:
    """Return the encoded table of the model's tensors at the positions ``own``, and its entries."""
    tensors = list(zip(model.names, model.dtypes, map(tuple, model.shapes), strict=True))
    declared = tuple(Declared(position, *tensors[position]) for position in own)
    return _table(declared), declared


def expect_natives(
    reader: Reader, flagged: bool, model: Layout, own: tuple[int, ...]
) -> tuple[Declared, ...]:
    """Read the table of native tensors, which must be the tensors at the positions ``own``.

    ``flagged``: whether the payload has a table. Raises PayloadError for any other table.
    """
    if not own and not flagged:
        return ()
    table, declared = expected_natives(model, own)
    if not (flagged and own and skip(reader, table)):  # a table is never empty
        names = ", ".join(each.name for each in declared[:3]) or "none"
        raise PayloadError(
            f"payload is for another model: the tensors in their own type must be {names} here"
        )
    return declared


def read_natives(
    reader: Reader, max_size: int, max_tensors: int = MAX_TENSORS
) -> tuple[Declared, ...]:
    """Read the table of native tensors.

    Raises PayloadError for a malformed table, for more than ``max_tensors`` tensors, and for
    tensors of more than 8 * ``max_size`` bytes together.
    """
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
    return tuple(found)


def _declared(reader: Reader, position: int, max_size: int) -> Declared:
    code = reader.byte()
    if code >= len(DTYPES) or DTYPES[code] == "bfloat16":  # numpy has no such type
        raise PayloadError(f"payload holds the unknown dtype {code}")
    shape = read_shape(reader, max_size)
    return Declared(position, read_name(reader), DTYPES[code], shape)


def natives_spec(declared: Sequence[Declared]) -> Spec:
    """Return the `Spec` of the stream of native tensors' bytes."""
    return Spec(Kind.BYTES, _U1, sum(each.nbytes for each in declared))


def natives_bytes(own: Sequence[NativeTensor]) -> Array:
    """Return the bytes of native tensors; raises PayloadError for NaN, but not for infinity."""
    parts = []
    for _, name, array in own:
        if array.dtype.kind == "f" and _has_nan(array):
            raise PayloadError(f"update holds NaN in {name}: {DIVERGED}")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts.append(np.ascontiguousarray(little).reshape(-1).view(_U1))
    return cast(Array, np.concatenate([np.empty(0, _U1), *parts]))


def decoded_natives(declared: Sequence[Declared], stream: Array) -> tuple[NativeTensor, ...]:
    """Return the native tensors in a stream; raises PayloadError for NaN and for a bool above 1."""
    found, start = [], 0
    for position, name, dtype, shape in declared:
        kind = np.dtype(dtype).newbyteorder("<")
        stop = start + math.prod(shape) * kind.itemsize
        raw = stream[start:stop].copy()  # aligned, and independent of the payload's memory
        if kind.kind == "b" and raw.size and raw.max() > 1:
            raise PayloadError(f"payload holds a bool that is neither 0 nor 1 in {name}")
        array = raw.view(kind).astype(np.dtype(dtype), copy=False).reshape(shape)
        if kind.kind == "f" and _has_nan(array):
            raise PayloadError(f"payload holds NaN in {name}")
        found.append(NativeTensor(position, name, array))
        start = stop
    return tuple(found)


def _has_nan(array: NDArray[Any]) -> bool:
    """Return whether an array of floats holds NaN; its minimum, which takes no memory, is then."""
    return bool(array.size and np.isnan(array.min()))
