"""Coding of index sets by shared context: each class of coordinates has its own density."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..base import Array, Indices, Kind, PayloadError, Spec
from ..registry import register
from .entropy import Entropy
from .index_context import CHECK, IndexContext

_CONTEXT = 4  # the tag, the first byte of a coded stream; `Entropy` has the other tags
_FIRST, _WIDEST = 5, 31  # bits in which the first class's width is sent, and the largest width
SPARSE = 4  # sets of more than a 1/SPARSE of the coordinates are not coded by context
_PIECE = 1 << 13  # bytes whose bits are looked at together, which bounds the memory
_SPARE = 64  # bytes: a stream by context has at most these more than one bit per coordinate
_BROKEN = "payload holds a broken stream of indices by context"
Bits = NDArray[np.uint8]  # one bit per byte


@register("coder")
@dataclass(frozen=True)
class Context(Entropy):
    """Codes like `entropy`, but index sets by shared context where this is smaller.

    Sender and receiver must know the same activity (`index_context.py`). Without a context, an
    index set is coded by `entropy`.

    The coordinates of the likeliest class come first, in their order, then those of the next class.
    They are read in windows of 2^b coordinates, where b (the width) belongs to the class. A bit per
    window says whether the window holds a selected coordinate. If it does, b bits say where the
    first one is, and the next window begins behind it. A window ends with its class. So a class
    costs only its width, which is sent first, and not the number of its selected coordinates. With
    b = 0 a class is a bitmap.
    """

    name: ClassVar[str] = "context"
    id: ClassVar[int] = 4
    contextual: ClassVar[bool] = True

    def encode(self, data: Array, spec: Spec) -> bytes | None:
        """Code a stream; return None for an empty stream."""
        plain = super().encode(data, spec)
        if plain is None or spec.kind is not Kind.INDICES or spec.context is None:
            return plain
        if SPARSE * spec.size > spec.context.size:  # a dense set would take long to decode
            return plain
        return min(plain, coded_in_windows(data.astype(np.uint32), spec.context), key=len)

    @classmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Decode a stream by the method that its tag byte names."""
        if spec.kind is not Kind.INDICES or not len(coded) or coded[0] != _CONTEXT:
            return super().decode(coded, spec)
        if spec.context is None:
            raise PayloadError("payload holds indices by a context that is not known here")
        if coded[1 : 1 + CHECK] != spec.context.check:
            raise PayloadError("payload holds indices by another context than is known here")
        if SPARSE * spec.size > spec.context.size:
            raise PayloadError("payload holds more indices by context than an encoder sends")
        found = _from_windows(coded[1 + CHECK :], spec.context, spec.size)
        return cast(Array, found.astype(spec.dtype))


def coded_in_windows(indices: Indices, context: IndexContext) -> bytes:
    """Return the stream of strictly increasing indices (k,) by context, with its tag; k > 0."""
    ranks = context.ranks(indices).astype(np.uint32)
    ranks.sort()  # in half of the time that it takes with 64 bits
    ranks = ranks.astype(np.int64)
    totals = context.counts
    ends = np.cumsum(totals)
    starts = ends - totals
    bounds = ranks.searchsorted(np.append(starts, ends[-1]))
    selected = np.diff(bounds)
    widths = _widths(totals, selected)
    used = np.flatnonzero(selected)
    firsts, lasts = bounds[used], bounds[used + 1] - 1
    gaps = np.diff(ranks, prepend=-1) - 1
    gaps[firsts] = ranks[firsts] - starts[used]
    zeros = gaps >> np.repeat(widths, selected)
    tails = totals.copy()  # the coordinates of each class behind its last selected one
    tails[used] = ends[used] - ranks[lasts] - 1
    skipped = np.cumsum(-(-tails >> widths))  # windows up to the end of a class
    zeros[firsts] += np.diff((skipped - -(-tails >> widths))[used], prepend=0)
    unary = np.zeros(int(zeros.sum()) + len(zeros), dtype=np.uint8)
    unary[np.cumsum(zeros + 1) - 1] = 1
    lows = [
        _bits_of(gaps[first : last + 1], width)
        for first, last, width in zip(firsts, lasts, widths[used].tolist(), strict=True)
        if width
    ]
    bits = np.concatenate([_bits_of_widths(widths[totals > 0]), unary, *lows])
    return bytes((_CONTEXT,)) + context.check + np.packbits(bits).tobytes()


def _widths(totals: NDArray[np.int64], selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each class's width b, from how many coordinates it has and how many are selected.

    The widths do not decrease, because that makes them short to send. So a class that is denser
    than the classes before it gets a common density with them (isotonic regression, by pooling
    adjacent violators). b is log2(ln 2 (mean gap + 1/2)), rounded.
    """
    pools = list[tuple[int, int, int]]()  # coordinates, selected ones, classes
    for pool in zip(totals.tolist(), selected.tolist(), [1] * len(totals), strict=True):
        total, chosen, classes = pool
        while pools and pools[-1][1] * total <= chosen * pools[-1][0]:
            before = pools.pop()
            total, chosen, classes = before[0] + total, before[1] + chosen, before[2] + classes
        pools.append((total, chosen, classes))
    widths, width = list[int](), 0
    for total, chosen, classes in pools:
        if chosen:
            mean = max((2 * total - chosen) * 251 // (512 * chosen), 1)
            width = max(width, min(mean.bit_length() - 1, _WIDEST))
        widths += [width] * classes
    return np.array(widths, dtype=np.int64)


def _bits_of_widths(widths: NDArray[np.int64]) -> Bits:
    """Return the bits of widths that do not decrease: the first, then the differences in unary."""
    differences = np.diff(widths)
    unary = np.zeros(int(differences.sum()) + len(differences), dtype=np.uint8)
    unary[np.cumsum(differences + 1) - 1] = 1
    return np.concatenate([_bits_of(widths[:1], _FIRST), unary])


def _bits_of(numbers: NDArray[np.int64], width: int) -> Bits:
    """Return the last `width` bits of each number, one after the other, highest bit first."""
    return (numbers[:, None] >> np.arange(width)[::-1] & 1).astype(np.uint8).reshape(-1)


def numbers_of(bits: Bits, width: int) -> NDArray[np.int64]:
    """Return the numbers whose bits `_bits_of` returned."""
    found = np.zeros(len(bits) // max(width, 1), dtype=np.int64)
    for each in bits.reshape(-1, width).T:
        found = found << 1 | each
    return found


def _from_windows(coded: memoryview, context: IndexContext, size: int) -> Indices:
    """Return the `size` indices in an untrusted stream, without its tag and the hash."""
    data = np.frombuffer(coded, dtype=np.uint8)
    # An encoder prefers a bitmap to a longer stream, and a longer one would take long to decode.
    if not 0 < len(data) <= context.size // 8 + _SPARE:
        raise PayloadError(_BROKEN)
    classes = np.flatnonzero(context.counts)
    first = int(data[0]) >> 8 - _FIRST
    ones = _ones(data, _FIRST, len(classes) - 1 + size)
    steps = np.diff(ones, prepend=_FIRST - 1) - 1
    widths = first + np.cumsum(np.append(0, steps[: len(classes) - 1]))
    if widths[-1] > _WIDEST:
        raise PayloadError(_BROKEN)
    used = int(ones[-1]) + 1
    lows = np.unpackbits(data[used // 8 :])[used % 8 :]
    windows = _Windows(steps[len(classes) - 1 :], lows)
    starts = np.cumsum(context.counts) - context.counts
    found = [
        ranks + starts[each]
        for each, width in zip(classes.tolist(), widths.tolist(), strict=True)
        for ranks in windows.of_class(int(context.counts[each]), width)
    ]
    windows.end()
    return np.sort(context.indices(np.concatenate(found)))


def _ones(data: NDArray[np.uint8], start: int, count: int) -> NDArray[np.int64]:
    """Return the places of the first `count` ones among the bits of `data` from `start` on."""
    found, left = list[NDArray[np.int64]](), count
    for at in range(0, len(data), _PIECE):
        bits = np.unpackbits(data[at : at + _PIECE])
        if not at:
            bits[:start] = 0
        here = np.flatnonzero(bits.view(np.bool_))[:left] + 8 * at
        found.append(here)
        left -= len(here)
        if not left:
            return np.concatenate(found)
    raise PayloadError(_BROKEN)


class _Windows:
    """Reads the selected coordinates of one class after the other.

    `zeros`: (k,), for each selected coordinate the number of windows before its own that hold none.
    `lows`: the bits that say where the coordinates are in their windows.
    """

    def __init__(self, zeros: NDArray[np.int64], lows: Bits) -> None:
        self._zeros, self._lows = zeros, lows
        self._next = self._bit = 0  # of the coordinates, of the bits

    def of_class(self, total: int, width: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the selected coordinates of a class of `total` coordinates.

        It takes more coordinates at a time than the class probably has, and keeps those whose
        window begins within the class. If the class has more, it takes twice as many the next time.
        """
        at = 0  # the number of the class at which the next window begins
        few = (total >> width) + 8
        while at < total and self._next < len(self._zeros):
            few *= 2
            zeros = self._zeros[self._next : self._next + few].clip(max=(total >> width) + 1)
            places = self._places(len(zeros), width)
            zeros = zeros[: len(places)]
            ends = at + np.cumsum((zeros << width) + places + 1)
            inside = ends - places - 1 < total
            taken = len(inside) if inside.all() else int(inside.argmin())
            if taken:
                at = int(ends[taken - 1])
                if at > total:
                    raise PayloadError(_BROKEN)
                yield ends[:taken] - 1
                self._next += taken
                self._bit += taken * width
            if taken < len(places) or not len(places):
                break
        if self._next < len(self._zeros):
            self._zeros[self._next] -= -(-(total - at) >> width)
            if self._zeros[self._next] < 0:
                raise PayloadError(_BROKEN)

    def _places(self, count: int, width: int) -> NDArray[np.int64]:
        """Return the places in their windows of the next `count` coordinates, or of fewer."""
        if not width:
            return np.zeros(count, dtype=np.int64)
        bits = self._lows[self._bit : self._bit + count * width]
        return numbers_of(bits[: len(bits) // width * width], width)

    def end(self) -> None:
        """Raise `PayloadError` if coordinates are left, or bits that are not the last padding."""
        rest = self._lows[self._bit :]
        if self._next < len(self._zeros) or len(rest) > 7 or rest.any():
            raise PayloadError(_BROKEN)
