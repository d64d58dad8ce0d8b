"""Classes of coordinates for coding index sets: how often and where a model was changed lately.

Sender and receiver know which coordinates the last eight updates changed (the activity). A
coordinate that was changed often, or is in a row and a column of its tensor that were changed
often, is more likely to be in the next index set. So the coordinates are divided into 24 classes by
a score of these three counts, and each class is coded with a density of its own. A newer update
counts more. All arithmetic uses integers, so that both sides get the same classes on any machine.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from ..layout import Layout
from ..scatter import Indices

Activity = NDArray[np.uint8]
Words = NDArray[np.uint64]
CLASSES, _BITS = 24, 5
_WORD = 64  # coordinates in a word of a bitmap
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
# The place of the j-th set bit of a byte, from the lowest; 0 if it has fewer.
_NTH = np.zeros((256, 8), dtype=np.uint8)
for _byte in range(256):
    _set = [bit for bit in range(8) if _byte >> bit & 1]
    _NTH[_byte, : len(_set)] = _set
_BLOCK = 1 << 16  # coordinates that are looked up at a time, which bounds the memory
# An update adds its weight to the sum of each coordinate that it changed, the newest update 12.
_WEIGHTS = (1, 1, 2, 2, 3, 4, 7, 12)  # of the bits of an activity; together 32
_SUMS = np.array(
    [sum(w for bit, w in enumerate(_WEIGHTS) if x >> bit & 1) for x in range(256)], dtype=np.uint8
)
_PARTS = 4  # the unit of a row's mean is a quarter of a weight
# A score is 6 log2(5/4 + own sum) + 4 log2(5/4 + mean of the row) + the same for the column, up to
# rounding and a constant. Each log2 is rounded down to an exact integer.
_OWN = np.array([((_PARTS * int(x) + 5) ** 6).bit_length() - 1 for x in _SUMS], dtype=np.uint8)
_MEANS = np.array([((x + 5) ** 4).bit_length() - 1 for x in range(32 * _PARTS + 1)], dtype=np.uint8)
_LOWEST = int(_OWN[0]) + 2 * int(_MEANS[0])
_WIDTH = 3  # of a class, in units of the score
_CLASS_OF = (CLASSES - 1 - (np.arange(256).clip(_LOWEST) - _LOWEST) // _WIDTH).clip(0).astype("u1")


def record(activity: Activity, indices: Indices | None) -> None:
    """Record in the (n,) `activity` that an update changed these coordinates; None means all.

    Bit 7 of an entry stands for the newest update, and bit 0 for the eighth newest.
    """
    activity >>= 1
    activity[slice(None) if indices is None else indices] |= 128


def recorded(activity: Activity, indices: Indices | None) -> Activity:
    """Return a copy of the (n,) `activity` in which an update is recorded (`record`)."""
    later = activity.copy()
    record(later, indices)
    return later


def classes_of(activity: Activity, layout: Layout) -> NDArray[np.uint8]:
    """Return the class of each coordinate, 0 to 23, as uint8 (n,); class 0 is the likeliest.

    `activity`: (n,). `layout`: the n coordinates' tensors. A tensor's rows are those of its first
    dimension; a tensor of one dimension is one row.
    """
    sums = _looked_up(_SUMS, activity)
    classes = np.empty(layout.size, dtype=np.uint8)
    bounds = layout.offsets.tolist()
    for start, stop, shape in zip(bounds[:-1], bounds[1:], layout.shapes, strict=True):
        if start == stop:
            continue
        rows = shape[0] if len(shape) > 1 else 1
        own = sums[start:stop].reshape(rows, -1)
        by_row = _PARTS * own.sum(1, dtype=np.int64) // own.shape[1]
        by_column = _PARTS * own.sum(0, dtype=np.int64) // rows
        score = _looked_up(_OWN, activity[start:stop]).reshape(own.shape)
        score += _MEANS[by_row][:, None]
        score += _MEANS[by_column]
        classes[start:stop] = _looked_up(_CLASS_OF, score)
    return classes


def _looked_up(table: NDArray[np.uint8], places: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return table[places], flat; a translation of bytes takes a third of numpy's time."""
    return np.frombuffer(bytearray(places).translate(table.data), dtype=np.uint8)


class IndexContext:
    """The classes of n coordinates, with the rank of each coordinate in the order of the classes.

    The coordinates of class 0 have the first ranks, in their order; then follow those of class 1.
    """

    def __init__(self, activity: Activity, layout: Layout) -> None:
        self.size = layout.size
        classes = classes_of(activity, layout)
        words = -(-self.size // _WORD)
        planes = np.zeros((_BITS, 8 * words), dtype=np.uint8)
        for bit in range(_BITS):
            packed = np.packbits(classes & (1 << bit), bitorder="little")
            planes[bit, : len(packed)] = packed
        self._planes: Words = planes.view("<u8")

    @cached_property
    def _tables(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """For each class and word, how many coordinates have lower ranks; and all classes' sizes.

        The first array is (24 words,), in the order of the ranks.
        """
        words = self._planes.shape[1]
        before = np.zeros((CLASSES, words + 1), dtype=np.uint32)
        for each in range(CLASSES):
            members = self._planes[0] if each & 1 else ~self._planes[0]
            for bit in range(1, _BITS):
                plane = self._planes[bit]
                members = members & (plane if each >> bit & 1 else ~plane)
            np.cumsum(np.bitwise_count(members), out=before[each, 1:])
        counts = before[:, -1].astype(np.int64)
        counts[0] -= -self.size % _WORD  # the bits after the last coordinate
        ranks = before[:, :words] + (np.cumsum(counts) - counts).astype(np.uint32)[:, None]
        return ranks.reshape(-1), counts

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many coordinates each class has, (24,)."""
        return self._tables[1]

    def ranks(self, indices: Indices) -> NDArray[np.int64]:
        """Return the ranks of the (k,) indices, in the order of the indices."""
        ranks = np.empty(len(indices), dtype=np.int64)
        for start in range(0, len(indices), _BLOCK):
            ranks[start : start + _BLOCK] = self._ranks(indices[start : start + _BLOCK])
        return ranks

    def _ranks(self, indices: Indices) -> NDArray[np.int64]:
        words, places = (indices >> 6).astype(np.int64), (indices & 63).astype(np.uint64)
        classes, members = np.zeros(len(words), dtype=np.int64), np.full(len(words), _ALL)
        for number, plane in enumerate(self._planes):
            here = plane.take(words)
            bit = here >> places & np.uint64(1)
            classes |= bit.astype(np.int64) << number
            members &= here ^ (bit - np.uint64(1))  # the coordinates of the same class
        lower = (np.uint64(1) << places) - np.uint64(1)
        ranks: NDArray[np.int64] = self._tables[0].take(classes * self._planes.shape[1] + words)
        return ranks + np.bitwise_count(members & lower)

    def indices(self, ranks: NDArray[np.uint32]) -> Indices:
        """Return the indices with these (k,) ranks, in the order of the ranks."""
        indices = np.empty(len(ranks), dtype=np.uint32)
        for start in range(0, len(ranks), _BLOCK):
            indices[start : start + _BLOCK] = self._indices(ranks[start : start + _BLOCK])
        return indices

    def _indices(self, ranks: NDArray[np.uint32]) -> Indices:
        before = self._tables[0]
        at = before.searchsorted(ranks, "right") - 1  # ranks of another dtype would be slow
        classes, words = np.divmod(at, self._planes.shape[1])
        members = np.full(len(words), _ALL)
        for number, plane in enumerate(self._planes):
            bit = (classes >> number & 1).astype(np.uint64)
            members &= plane.take(words) ^ (bit - np.uint64(1))
        places = _selected(members, (ranks - before[at]).astype(np.uint64))
        found: Indices = (words * _WORD + places).astype(np.uint32)
        return found


def _selected(members: Words, rest: Words) -> NDArray[np.int64]:
    """Return the place of the set bit number `rest`, from 0, of each word.

    Vigna 2008, "Broadword implementation of rank/select queries", algorithm 2. Byte i of `counts`
    is the number of the set bits up to byte i of the word.
    """
    counts = np.bitwise_count(members.view(np.uint8)).view("<u8") * _ONES
    later = np.bitwise_count((rest * _ONES | _HIGHS) - counts & _HIGHS)  # bytes before the bit's
    place = later.astype(np.uint64) << np.uint64(3)
    rest = rest - (counts << np.uint64(8) >> place & np.uint64(255))
    places: NDArray[np.int64] = _NTH[members >> place & np.uint64(255), rest] + place.astype("i8")
    return places


class SharedContext:
    """The activity at one version of a model, which makes the context of index sets.

    The caller does not change the (n,) `activity` while this object is in use.
    """

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self._made: tuple[tuple[int, ...], IndexContext] | None = None
        self._hash: tuple[int, int] | None = None  # the last seed, and the hash with it

    def hash(self, seed: int) -> int:
        """Return a 64-bit hash of the activity, by which both ends see that they know the same."""
        if self._hash is None or self._hash[0] != seed:
            self._hash = seed, xxh3_64_intdigest(self.activity.data, seed)
        return self._hash[1]

    def of(self, layout: Layout, exact: tuple[int, ...]) -> IndexContext:
        """Return the context of a payload's index set; the last one is cached.

        `layout`: the layout of the n coordinates. `exact`: positions of the tensors that the
        payload holds whole, so that the indices do not count them.
        """
        if self._made is None or self._made[0] != exact:
            activity = self.activity
            if exact:
                bounds = layout.offsets.tolist()
                kept = [t for t in range(len(layout)) if t not in exact]
                pieces = [activity[bounds[t] : bounds[t + 1]] for t in kept]
                activity = np.concatenate([*pieces, activity[:0]])
            self._made = exact, IndexContext(activity, layout.without(exact))
        return self._made[1]
