"""Computes robust means of updates for each coordinate, so that bad nodes have little influence."""

import numpy as np
from numpy.typing import NDArray

from edgewire.compression.base import Indices, Vector
from edgewire.compression.scatter import find
from edgewire.strategy.update_mean import UpdateMean

KINDS = ("mean", "median", "trimmed")
ABSENT = ("zero", "left_out")
LEAST = 3  # the fewest values of which a median leaves out those of one bad node
_COLUMNS = 1 << 15  # coordinates that are sorted at a time, which limits the memory of the table


class RobustMean(UpdateMean):
    """The median, or the trimmed mean, of each coordinate (Yin et al. 2018, Definitions 1 and 2).

    It is used instead of `SparseMean`. `absent="zero"`: an entry that a node did not send counts as
    0. Then the median of a coordinate is 0 if fewer than half of the nodes sent it.
    `absent="left_out"`: only the nodes that sent an entry are used for it. An entry is left out of
    the result if fewer than half of the nodes sent it, or fewer than three. Otherwise an entry that
    only a bad node sent would be this node's value. `trim`: the trimmed mean cuts off this share of
    the nodes at each end. All nodes have the same weight. All added updates are stored in memory.
    """

    def __init__(self, size: int, kind: str, *, trim: float = 0.2, absent: str = "zero") -> None:
        self.begin(size)
        self._median, self._trim = kind == "median", trim
        self._fill = np.float32(0 if absent == "zero" else np.nan)
        self._added: list[tuple[Indices | None, Vector]] = []

    def add(self, indices: Indices | None, values: Vector, weight: float = 1.0) -> None:
        """Add a node's update; `weight` is ignored, because all nodes have the same weight.

        `values`: float32 (k,) at the strictly increasing `indices`, or (n,) if `indices` is None.
        """
        self._added.append((indices, values))

    def take(self) -> tuple[Indices | None, Vector]:
        """Return the robust mean of the added updates, and delete the updates.

        The result is (indices, values): the union of the updates' indices (None: all entries), and
        the median or trimmed mean at these indices. With `absent="left_out"` the union lacks the
        entries that too few nodes sent; if all entries are returned, these are 0.
        """
        added, self._added = self._added, []
        sets = [indices for indices, _ in added if indices is not None]
        union = np.unique(np.concatenate(sets)) if len(sets) == len(added) else None
        if union is not None:  # the columns of the table are the entries of the union
            columns = (np.searchsorted(union, indices).astype(np.uint32) for indices in sets)
            added = [(each, values) for each, (_, values) in zip(columns, added, strict=True)]
        count = self.size if union is None else len(union)
        result = np.empty(count, dtype=np.float32)
        # The table has a row per node and a column per coordinate, for _COLUMNS coordinates at a
        # time. Each column is sorted.
        for first in range(0, count, _COLUMNS):
            last = min(first + _COLUMNS, count)
            table = np.full((len(added), last - first), self._fill, dtype=np.float32)
            for row, (at, values) in zip(table, added, strict=True):
                if at is None:
                    row[:] = values[first:last]
                else:
                    low, high = find(at, (first, last))
                    row[at[low:high] - first] = values[low:high]
            result[first:last] = self._middle(table)
        missing = np.isnan(result)
        if union is None or not missing.any():
            result[missing] = 0
            return union, result
        return union[~missing], result[~missing]

    def _middle(self, table: NDArray[np.float32]) -> Vector:
        """Return the median or trimmed mean of each column of (nodes, columns).

        NaN stands for absent entries; the result is NaN where too few nodes sent an entry.
        """
        table.sort(axis=0)  # an absent entry is NaN, which is sorted to the end
        there = np.count_nonzero(table == table, axis=0)
        nodes = len(table)
        if self._median:
            cut, low, high = 0, (there - 1) // 2, there // 2
        else:
            # Bad nodes may all send an entry that good nodes leave out.
            cut = int(nodes * self._trim)
            low, high = cut, there - 1 - cut
        needed = max((nodes + 1) // 2, min(LEAST, nodes), 2 * cut + 1)
        rows = np.arange(len(table))[:, None]
        inside = (rows >= low) & (rows <= high)  # of a median, the one or two middle values
        total = np.where(inside, table, 0).sum(axis=0, dtype=np.float64)
        count = np.where(there < needed, np.nan, np.maximum(inside.sum(axis=0), 1))
        return np.asarray(total / count, dtype=np.float32)
