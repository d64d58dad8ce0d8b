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
from xxhash import xxh3_64_digest

from ..layout import Layout
from ..scatter import Indices

Activity = NDArray[np.uint8]
Words = NDArray[np.uint64]
CLASSES, _BITS = 24, 5
CHECK = 4  # bytes of the classes' hash in a coded stream
_WORD = 64  # coordinates in a word of a bitmap
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
    sums = _SUMS[activity]
    classes = np.empty(layout.size, dtype=np.uint8)
    bounds = layout.offsets.tolist()
    for start, stop, shape in zip(bounds[:-1], bounds[1:], layout.shapes, strict=True):
        if start == stop:
            continue
        rows = shape[0] if len(shape) > 1 else 1
        own = sums[start:stop].reshape(rows, -1)
        by_row = _PARTS * own.sum(1, dtype=np.int64) // own.shape[1]
        by_column = _PARTS * own.sum(0, dtype=np.int64) // rows
        score = _OWN[activity[start:stop]].reshape(own.shape)
        score += _MEANS[by_row][:, None]
        score += _MEANS[by_column]
        classes[start:stop] = _CLASS_OF[score].reshape(-1)
    return classes


class IndexContext:
    """The classes of n coordinates, with the rank of each coordinate in the order of the classes.

    The coordinates of class 0 have the first ranks, in their order; then follow those of class 1.
    `check`: the first bytes of a hash of the classes, by which a receiver sees that it knows the
    same classes as the sender.
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
        self.check = xxh3_64_digest(planes.data)[:CHECK]

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

    def _members(self, words: NDArray[np.int64], classes: NDArray[np.uint8]) -> Words:
        """Return the bitmaps of some words; in each, the members of one class are set."""
        members = np.full(len(words), ~np.uint64(0))
        for bit in range(_BITS):
            plane = self._planes[bit, words]
            flip = ((classes >> bit & 1) ^ 1).astype(np.uint64)
            plane ^= np.uint64(0) - flip
            members &= plane
        return members

    def ranks(self, indices: Indices) -> NDArray[np.int64]:
        """Return the ranks of the (k,) indices, in the order of the indices."""
        ranks = np.empty(len(indices), dtype=np.int64)
        for start in range(0, len(indices), _BLOCK):
            ranks[start : start + _BLOCK] = self._ranks(indices[start : start + _BLOCK])
        return ranks

    def _ranks(self, indices: Indices) -> NDArray[np.int64]:
        words, places = (indices >> 6).astype(np.int64), (indices & 63).astype(np.uint64)
        classes = np.zeros(len(indices), dtype=np.uint8)
        for bit in range(_BITS):
            found = self._planes[bit, words] >> places & np.uint64(1)
            classes |= found.astype(np.uint8) << bit
        lower = (np.uint64(1) << places) - np.uint64(1)
        within = np.bitwise_count(self._members(words, classes) & lower)
        before = self._tables[0][classes * np.int64(self._planes.shape[1]) + words]
        ranks: NDArray[np.int64] = before.astype(np.int64) + within
        return ranks

    def indices(self, ranks: NDArray[np.int64]) -> Indices:
        """Return the indices with these (k,) ranks, in the order of the ranks."""
        indices = np.empty(len(ranks), dtype=np.uint32)
        for start in range(0, len(ranks), _BLOCK):
            indices[start : start + _BLOCK] = self._indices(ranks[start : start + _BLOCK])
        return indices

    def _indices(self, ranks: NDArray[np.int64]) -> Indices:
        before = self._tables[0]
        # With another dtype numpy would convert the whole table, and not the ranks.
        at = before.searchsorted(ranks.astype(before.dtype), "right") - 1
        classes, words = np.divmod(at, self._planes.shape[1])
        rest = (ranks - before[at]).astype(np.uint64)
        members = self._members(words, classes.astype(np.uint8))
        places = np.zeros(len(words), dtype=np.uint64)
        for width in (32, 16, 8, 4, 2, 1):  # finds the set bit number `rest`
            low = np.bitwise_count(members & np.uint64((1 << width) - 1)).astype(np.uint64)
            later = rest >= low
            rest -= np.where(later, low, np.uint64(0))
            shift = np.where(later, np.uint64(width), np.uint64(0))
            members >>= shift
            places += shift
        found: Indices = (words * _WORD + places.astype(np.int64)).astype(np.uint32)
        return found


class SharedContext:
    """The activity at one version of a model, which makes the context of index sets.

    The caller does not change the (n,) `activity` while this object is in use.
    """

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self._made: tuple[tuple[int, ...], IndexContext] | None = None

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
