"""Coding of index sets by shared context: each class of coordinates has its own density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..base import Array, Indices, Kind, PayloadError, Spec
from ..registry import register
from .entropy import Entropy
from .index_context import CHECK, IndexContext

_CONTEXT = 3  # the tag, the first byte of a coded stream; `Entropy` has the other tags
_BROKEN = "payload holds a broken stream of indices by context"
Bits = NDArray[np.uint8]  # one bit per byte


@register("coder")
@dataclass(frozen=True)
class Context(Entropy):
    """Codes like `entropy`, but index sets by shared context where this is smaller.

    Sender and receiver must know the same activity (`index_context.py`). Without a context, an
    index set is coded by `entropy`.

    In each of the 16 classes, the coordinates are numbered in their order. The gaps between the
    numbers of the selected ones are Rice-coded. The parameter follows from how many of the class
    are selected, which is sent first. A class in which more than 39 % are selected is a bitmap.
    """

    name: ClassVar[str] = "context"
    id: ClassVar[int] = 4
    contextual: ClassVar[bool] = True

    def encode(self, data: Array, spec: Spec) -> bytes | None:
        """Code a stream; return None for an empty stream."""
        plain = super().encode(data, spec)
        if plain is None or spec.kind is not Kind.INDICES or spec.context is None:
            return plain
        return min(plain, coded_by_class(data.astype(np.uint32), spec.context), key=len)

    @classmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Decode a stream by the method that its tag byte names."""
        if spec.kind is not Kind.INDICES or not len(coded) or coded[0] != _CONTEXT:
            return super().decode(coded, spec)
        if spec.context is None:
            raise PayloadError("payload holds indices by a context that is not known here")
        if coded[1 : 1 + CHECK] != spec.context.check:
            raise PayloadError("payload holds indices by another context than is known here")
        found = _from_classes(_Bits(coded[1 + CHECK :]), spec.context, spec.size)
        return cast(Array, found.astype(spec.dtype))


def _rice_bits(total: int, selected: int) -> int:
    """Return the number of low bits in the Rice code of a class's gaps; 0 stands for a bitmap.

    It is log2(ln 2 (mean gap + 1/2)) rounded to an integer, computed with integers.
    """
    return max((2 * total - selected) * 251 // (512 * selected), 1).bit_length() - 1


def coded_by_class(indices: Indices, context: IndexContext) -> bytes:
    """Return the stream of strictly increasing indices (k,) by context, with its tag."""
    ranks = np.sort(context.ranks(indices))
    starts = [0, *np.cumsum(context.counts).tolist()]  # the first rank of each class
    bounds = ranks.searchsorted(starts).tolist()
    heads, bitmaps, lows, highs = list[Bits](), list[Bits](), list[Bits](), list[Bits]()
    left = len(indices)
    for each, last in _present(context):
        total = starts[each + 1] - starts[each]
        selected = bounds[each + 1] - bounds[each]
        if not last:
            heads.append(_bits_of(np.array([selected]), min(total, left).bit_length()))
            left -= selected
        if selected in (0, total):
            continue
        chosen = ranks[bounds[each] : bounds[each + 1]] - starts[each]
        low = _rice_bits(total, selected)
        if not low:
            bits = np.zeros(total, dtype=np.uint8)
            bits[chosen] = 1
            bitmaps.append(bits)
            continue
        gaps = np.diff(chosen, prepend=-1) - 1
        lows.append(_bits_of(gaps, low))
        ends = np.cumsum((gaps >> low) + 1) - 1
        bits = np.zeros(ends[-1] + 1, dtype=np.uint8)
        bits[ends] = 1
        highs.append(bits)
    bits = np.concatenate([*heads, *bitmaps, *lows, *highs, np.zeros(0, dtype=np.uint8)])
    return bytes((_CONTEXT,)) + context.check + np.packbits(bits).tobytes()


def _present(context: IndexContext) -> list[tuple[int, bool]]:
    """Return the classes that have coordinates, the likeliest first, and whether it is the last.

    The number of selected coordinates in the last class is not sent, because the sum is known.
    """
    present = np.flatnonzero(context.counts)[::-1].tolist()
    return [(each, each == present[-1]) for each in present]


def _bits_of(numbers: NDArray[np.int64], width: int) -> Bits:
    """Return the last `width` bits of each number, one after the other, highest bit first."""
    return (numbers[:, None] >> np.arange(width)[::-1] & 1).astype(np.uint8).reshape(-1)


class _Bits:
    """Reads an untrusted string of bits; raises `PayloadError` at its end."""

    def __init__(self, coded: memoryview) -> None:
        self._bytes = np.frombuffer(coded, dtype=np.uint8)
        self._at = 0

    def take(self, count: int) -> Bits:
        """Return the next `count` bits."""
        start, self._at = self._at, self._at + count
        if self._at > 8 * len(self._bytes):
            raise PayloadError(_BROKEN)
        first = start // 8
        bits = np.unpackbits(self._bytes[first : -(-self._at // 8)])
        return bits[start - 8 * first : self._at - 8 * first]

    def numbers(self, count: int, width: int) -> NDArray[np.int64]:
        """Return the next `count` numbers of `width` bits."""
        found = np.zeros(count, dtype=np.int64)
        for bits in self.take(count * width).reshape(count, width).T:
            found = found << 1 | bits
        return found

    def rest(self) -> Bits:
        """Return all remaining bits, without the zeros that fill up the last byte."""
        bits = self.take(8 * len(self._bytes) - self._at)
        ones = np.flatnonzero(bits[-8:])
        used = max(len(bits) - 8, 0) + int(ones[-1]) + 1 if len(ones) else 0
        if len(bits) - used > 7:
            raise PayloadError(_BROKEN)
        return bits[:used]


def _from_classes(bits: _Bits, context: IndexContext, size: int) -> Indices:
    left, selected = size, dict[int, int]()
    for each, last in _present(context):
        total = int(context.counts[each])
        count = left if last else int(bits.numbers(1, min(total, left).bit_length())[0])
        if count > min(total, left):
            raise PayloadError(_BROKEN)
        selected[each], left = count, left - count
    if size == context.size:
        if len(bits.rest()):
            raise PayloadError(_BROKEN)
        return np.arange(size, dtype=np.uint32)
    starts = np.cumsum(context.counts) - context.counts  # the first rank of each class
    found, rice = list[NDArray[np.int64]](), dict[int, int]()
    for each, count in selected.items():
        total = int(context.counts[each])
        low = _rice_bits(total, count) if 0 < count < total else 0
        if count == total:
            found.append(np.arange(total) + starts[each])
        elif low:
            rice[each] = low
        elif count:
            ranks = np.flatnonzero(bits.take(total))
            if len(ranks) != count:
                raise PayloadError(_BROKEN)
            found.append(ranks + starts[each])
    lows = {each: bits.numbers(selected[each], low) for each, low in rice.items()}
    unary = bits.rest()
    if np.count_nonzero(unary) != sum(map(len, lows.values())):
        raise PayloadError(_BROKEN)
    ends = np.flatnonzero(unary)
    highs, at = np.diff(ends, prepend=-1) - 1, 0
    for each, low in rice.items():
        gaps = (highs[at : at + selected[each]] << low) + lows[each]
        ranks = np.cumsum(gaps + 1) - 1
        if ranks[-1] >= context.counts[each]:
            raise PayloadError(_BROKEN)
        found.append(ranks + starts[each])
        at += selected[each]
    return np.sort(context.indices(np.concatenate([*found, ends[:0]])))
