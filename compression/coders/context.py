"""Coding of index sets by shared context: each class of coordinates has its own density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..base import Array, Indices, Kind, PayloadError, Spec
from ..registry import register
from .entropy import Entropy
from .shared_context import IndexContext

_CONTEXT = 4  # the tag, the first byte of a coded stream; `Entropy` has the other tags
_FIRST, _WIDEST = 5, 31  # bits in which the first class's width is sent, and the largest width
SPARSE = 5  # sets of more than a 1/SPARSE of the coordinates are not coded by context
_BLOCK = 1 << 14  # coordinates that are read together, which bounds the memory too
_PIECE = 1 << 13  # bytes whose bits are looked at together, which bounds the memory
_SPARE = 64  # bytes: a stream by context has at most these more than one bit per coordinate
_BROKEN = "payload holds a broken stream of indices by context"
Bits = NDArray[np.uint8]  # one bit per byte


@register("coder")
@dataclass(frozen=True)
class Context(Entropy):
    """Codes like `entropy`, but index sets by shared context where this is smaller.

    Sender and receiver must know the same activity (`shared_context.py`). Without a context, an
    index set is coded by `entropy`.

    The coordinates of the likeliest class come first, in their order, then those of the next class.
    They are read in windows of 2^b coordinates, where b (the width) belongs to the class. A bit per
    window says whether the window holds a selected coordinate. If it does, b bits say where the
    first one is, and the next window begins behind it. The classes with the same width make a
    segment, and a window ends with its segment. So a class costs only its width, which is sent
    first, and not the number of its selected coordinates. With b = 0 a segment is a bitmap.
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
        if SPARSE * spec.size > spec.context.size:
            raise PayloadError("payload holds more indices by context than an encoder sends")
        found = _from_windows(coded[1:], spec.context, spec.size)
        return cast(Array, found.astype(spec.dtype, copy=False))


def coded_in_windows(indices: Indices, context: IndexContext) -> bytes:
    """Return the stream of strictly increasing indices (k,) by context, with its tag; k > 0."""
    ranks = context.ranks(indices).astype(np.uint32)
    ranks.sort()  # in half of the time that it takes with 64 bits
    ranks = ranks.astype(np.int64)
    of_classes = np.cumsum(context.counts)
    selected = np.diff(ranks.searchsorted(of_classes), prepend=0)
    of_classes_widths = _widths(context.counts, selected)
    totals, widths = _segments(context.counts, of_classes_widths)
    ends = np.cumsum(totals)
    starts = ends - totals
    lasts = ranks.searchsorted(ends) - 1
    selected = np.diff(lasts, prepend=-1)
    used = np.flatnonzero(selected)
    lasts = lasts[used]
    firsts = np.append(0, lasts[:-1] + 1)
    gaps = np.diff(ranks, prepend=-1) - 1
    gaps[firsts] = ranks[firsts] - starts[used]
    zeros = gaps >> widths.repeat(selected)
    tails = totals.copy()  # the coordinates of each segment behind its last selected one
    tails[used] = ends[used] - ranks[lasts] - 1
    empty = -(-tails >> widths)  # windows in the tails
    skipped = np.cumsum(empty) - empty
    zeros[firsts] += np.diff(skipped[used], prepend=0)
    ones = np.cumsum(zeros + 1) - 1
    unary = np.zeros(int(ones[-1]) + 1, dtype=np.uint8)
    unary[ones] = 1
    lows = [
        _bits_of(gaps[first : last + 1], width)
        for first, last, width in zip(firsts, lasts, widths[used].tolist(), strict=True)
        if width
    ]
    head = _bits_of_widths(of_classes_widths[context.counts > 0])
    bits = np.concatenate([head, unary, *lows])
    return bytes((_CONTEXT,)) + np.packbits(bits).tobytes()


def _segments(
    totals: NDArray[np.int64], widths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the coordinates and the width of each segment: of adjacent classes of equal width."""
    first = np.flatnonzero(np.diff(widths, prepend=-1))
    return np.add.reduceat(totals, first), widths[first]


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
    bits = np.empty((len(numbers), width), dtype=np.uint8)
    for bit in range(width):
        bits[:, bit] = numbers >> width - 1 - bit & 1
    return bits.reshape(-1)


def numbers_of(bits: Bits, width: int, count: int) -> NDArray[np.int64]:
    """Return the `count` numbers whose bits `_bits_of` returned.

    A product of matrices is faster than shifts. float64 holds integers of 53 bits exactly.
    """
    powers = np.ldexp(1.0, np.arange(width)[::-1])
    numbers: NDArray[np.int64] = (bits.reshape(count, width) @ powers).astype(np.int64)
    return numbers


def _from_windows(coded: memoryview, context: IndexContext, size: int) -> Indices:
    """Return the `size` indices in an untrusted stream, without its tag."""
    data = np.frombuffer(coded, dtype=np.uint8)
    # An encoder prefers a bitmap to a longer stream, and a longer one would take long to decode.
    if not 0 < len(data) <= context.size // 8 + _SPARE:
        raise PayloadError(_BROKEN)
    totals = context.counts[context.counts > 0]
    steps = _steps(data, len(totals) - 1 + size)
    used = _FIRST + len(steps) + int(steps.sum(dtype=np.int64))
    widths = (int(data[0]) >> 8 - _FIRST) + np.cumsum(np.append(0, steps[: len(totals) - 1]))
    if widths[-1] > _WIDEST:
        raise PayloadError(_BROKEN)
    lows = np.unpackbits(data[used // 8 :])[used % 8 :]
    indices = context.indices(_ranks(steps[len(totals) - 1 :], lows, *_segments(totals, widths)))
    indices.sort()
    return indices


def _steps(data: NDArray[np.uint8], count: int) -> NDArray[np.signedinteger[Any]]:
    """Return the numbers of zeros before each of the first `count` ones behind the first width."""
    kind = np.int32 if len(data) < 1 << 27 else np.int64  # half of the memory
    ones = np.empty(count + 1, dtype=kind)
    ones[0], found = _FIRST - 1, 1
    for at in range(0, len(data), _PIECE):
        bits = np.unpackbits(data[at : at + _PIECE])
        if not at:
            bits[:_FIRST] = 0
        here = np.flatnonzero(bits.view(np.bool_))[: count + 1 - found]
        np.add(here, 8 * at, out=ones[found : found + len(here)], casting="same_kind")
        found += len(here)
        if found > count:
            steps: NDArray[np.signedinteger[Any]] = np.diff(ones)
            steps -= 1
            return steps
    raise PayloadError(_BROKEN)


def _ranks(
    zeros: NDArray[np.signedinteger[Any]],
    lows: Bits,
    totals: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Return the ranks (k,) of the selected coordinates, in increasing order.

    `zeros`: (k,), for each selected coordinate the number of windows before its own that hold none;
    the function changes it. `lows`: the bits that say where the coordinates are in their windows.
    `totals`, `widths`: the coordinates and the width of each segment.
    """
    ranks = np.empty(len(zeros), dtype=np.uint32)
    windows = np.cumsum(zeros, out=zeros)  # without a selected coordinate, up to each selected one
    most = int(windows[-1])
    place = bit = skipped = start = 0  # of the next coordinate, bit, empty window and segment
    for total, width in zip(totals.tolist(), widths.tolist(), strict=True):
        at = 0  # where the next window of this segment begins
        while place < len(windows):
            # At most so many are in this segment: their own windows may have taken no coordinate.
            empty = min(skipped + (total - at >> width), most)
            last = min(
                int(windows.searchsorted(windows.dtype.type(empty), "right")),
                place + _BLOCK,
                place + (len(lows) - bit) // width if width else len(windows),
            )
            if last <= place:
                break
            within = numbers_of(lows[bit : bit + (last - place) * width], width, last - place)
            starts = (windows[place:last] - np.int64(skipped) << width) + at
            starts[1:] += np.cumsum(within[:-1] + 1)
            count = int(starts.searchsorted(total))
            if not count:
                break
            found = np.add(starts[:count], within[:count], out=starts[:count])
            at = int(found[-1]) + 1
            if at > total:
                raise PayloadError(_BROKEN)
            np.add(found, start, out=ranks[place : place + count], casting="unsafe")
            place += count
            bit += count * width
            skipped = int(windows[place - 1])
            if place < last:
                break
        if place == len(windows):
            break
        skipped += -(-(total - at) >> width)
        if windows[place] < skipped:
            raise PayloadError(_BROKEN)
        start += total
    rest = lows[bit:]
    if place < len(windows) or len(rest) > 7 or rest.any():  # a byte's padding is zeros
        raise PayloadError(_BROKEN)
    return ranks
