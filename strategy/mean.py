"""The mean of many sparse updates, at the cost of the entries received."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compression.payload import quiet
from compression.stages import Indices, Vector

_SORTED = 32  # a set below 1 / 32 of all entries is sorted; a larger one is marked and collected


@dataclass
class MeanState:
    """A sum under way: float32 (n,), the sets of indices in it, whether it is dense, its weight."""

    sum: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    sets: list[NDArray[np.uint32]] = field(default_factory=list)
    dense: bool = False
    weight: float = 0.0


class SparseMean:
    """Adds updates of n entries up; what a worker did not send counts as 0.

    Memory: five bytes an entry, whatever the number of workers.
    """

    def __init__(self, size: int, state: MeanState | None = None) -> None:
        self._state = state = MeanState() if state is None else state
        if not len(state.sum):
            state.sum = np.zeros(size, dtype=np.float32)
        self._sum = state.sum
        self._mark: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)

    @quiet
    def add(self, indices: Indices | None, values: Vector, weight: float = 1.0) -> None:
        """Add `weight` times an update: (k,) at strictly increasing `indices`, (n,) for None."""
        self._state.weight += weight
        values = values if weight == 1.0 else values * np.float32(weight)
        if indices is None:
            self._state.dense = True
            self._sum += values
        else:
            self._state.sets.append(indices)
            self._sum[indices] += values

    @quiet
    def take(self) -> tuple[Indices | None, Vector]:
        """Return the mean, at the union of the sets added (None: everywhere), and start anew."""
        state = self._state
        weight = np.float32(state.weight)
        union = None if state.dense else self._union()
        if union is None:
            values = self._sum / weight
            self._sum.fill(0)
        else:
            values = self._sum[union] / weight
            self._sum[union] = 0
        state.sets, state.dense, state.weight = [], False, 0.0
        return union, values

    def _union(self) -> Indices | None:
        """Return all indices added, each once, increasing; None if that is every entry."""
        if len(self._state.sets) == 1:
            union = self._state.sets[0]
        elif sum(map(len, self._state.sets)) * _SORTED < len(self._sum):
            union = np.unique(np.concatenate(self._state.sets))
        else:
            for indices in self._state.sets:
                self._mark[indices] = True
            union = np.flatnonzero(self._mark).astype(np.uint32)
            self._mark.fill(False)
        return None if len(union) == len(self._sum) else union
