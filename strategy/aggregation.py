"""Averages nodes' updates: sparse updates, BatchNorm's running statistics, native tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewire.compression.base import Indices, Vector
from edgewire.compression.decoder import quiet
from edgewire.compression.flower.native_tensors import NONE, Arrays, Initial, differing
from edgewire.compression.flower.server.statistics_averaging import mean, median
from edgewire.compression.flower.server.statistics_screen import StatisticsSplit
from edgewire.compression.layout import Layout
from edgewire.compression.scatter import add_at
from edgewire.strategy.node_means import NodeMeans
from edgewire.strategy.robust_aggregation import RobustMean

# If the updates have fewer than 1 / _SORTED of all entries, sorting their indices is faster than
# marking them in a mask.
_SORTED = 32


@dataclass
class MeanState:
    """The state of `SparseMean`: the updates that it has added up.

    `sum`: their weighted sum, float32 (n,). `sets`: the indices of each sparse update. `dense`:
    whether one of them was dense. `weight`: the sum of their weights. `sent`: the weight of the
    sparse updates that hold an entry, float32 (n,), or (0,) if it is not needed. `whole`: the
    weight of the dense updates.
    """

    sum: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    sets: list[NDArray[np.uint32]] = field(default_factory=list)
    dense: bool = False
    weight: float = 0.0
    sent: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    whole: float = 0.0


class SparseMean:
    """The weighted mean of updates of n entries; an entry that a node did not send counts as 0.

    `sender_exponent`: an entry of the mean is multiplied by (W / w)^`sender_exponent`, where W is
    the weight of all nodes and w is that of the nodes that sent the entry. With 0 it is the mean
    over all nodes, and with 1 the mean over the nodes that sent the entry.

    It needs five bytes of memory for each of the n entries, for any number of nodes; nine with a
    `sender_exponent`.
    """

    def __init__(
        self, size: int, state: MeanState | None = None, sender_exponent: float = 0.0
    ) -> None:
        self._state = state = MeanState() if state is None else state
        if not len(state.sum):
            state.sum = np.zeros(size, dtype=np.float32)
        self._sum = state.sum
        self._exponent = np.float32(sender_exponent)
        if sender_exponent and not len(state.sent):
            state.sent = np.zeros(size, dtype=np.float32)
        self._mark: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)

    @quiet
    def add(self, indices: Indices | None, values: Vector, weight: float = 1.0) -> None:
        """Add a node's update to the weighted sum.

        `values`: float32 (k,) at the increasing `indices`, or (n,) if `indices` is None. `weight`:
        the node's weight in the mean.
        """
        self._state.weight += weight
        values = values if weight == 1.0 else values * np.float32(weight)
        if indices is None:
            self._state.dense = True
            self._state.whole += weight
            self._sum += values
        else:
            self._state.sets.append(indices)
            add_at(self._sum, indices, values)
            if self._exponent:
                self._state.sent[indices] += np.float32(weight)  # the indices are distinct

    @quiet
    def take(self) -> tuple[Indices | None, Vector]:
        """Return the mean of the added updates, and begin a new mean.

        The result is (indices, values): the union of the updates' indices (None: all n entries),
        and the mean at these indices.
        """
        state = self._state
        weight = np.float32(state.weight)
        union = None if state.dense else self._union()
        if union is None:
            values = self._sum / weight
            self._sum.fill(0)
        else:
            values = self._sum[union] / weight
            self._sum[union] = 0
        if self._exponent:
            held = slice(None) if union is None else union
            sent = state.sent[held] + np.float32(state.whole)
            # An entry that no node sent is 0, whatever its factor is.
            values *= (weight / np.where(sent > 0, sent, weight)) ** self._exponent
            state.sent[held] = 0
        state.sets, state.dense, state.weight, state.whole = [], False, 0.0, 0.0
        return union, values

    def _union(self) -> Indices | None:
        """Return the increasing union of all added indices; None if it holds all n entries."""
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


Shares = NDArray[np.float32] | np.float32 | float


@dataclass
class MixState:
    """The state of `StatisticsMix`: sums over the reports of nodes, for s statistics.

    A report is the statistics that a node sends; `StatisticsMix` explains its share. `sum`: the sum
    of weight * share * report, (s,). `shares`: the sum of weight * share, (s,). `weight`: the sum
    of the weights. `low`, `high`: the smallest and the largest report, (s,).
    """

    sum: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    shares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    weight: float = 0.0
    low: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    high: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def begin(self, size: int) -> None:
        """Set all sums to 0, for reports of `size` statistics."""
        self.sum, self.shares, self.weight = np.zeros(size), np.zeros(size), 0.0
        self.low = np.full(size, np.inf, dtype=np.float32)
        self.high = np.full(size, -np.inf, dtype=np.float32)


class StatisticsMix(StatisticsSplit):
    """A convex combination of the model's running statistics and the statistics that nodes report.

    x = (1 - mean of a_i) x + mean of a_i s_i, for reports s_i. The share a_i, in 0..1, is the
    factor with which the server applies the node's update. So the result is always between the
    smallest and the largest of x and the reports. Reports hold values, because changes could make a
    variance negative: a change may be stale, or an optimiser may have scaled it. With a negative
    variance the model's outputs would be NaN.

    `kind="mean"` computes this formula. `kind="median"` and `kind="trimmed"` compute, for each
    entry, the median or the trimmed mean of (1 - a_i) x + a_i s_i (`RobustMean`). These two kinds
    ignore the nodes' weights in the mean. `trim`: the share that the trimmed mean cuts off at each
    end.
    """

    def __init__(
        self,
        layout: Layout,
        state: MixState | None = None,
        *,
        kind: str = "mean",
        trim: float = 0.0,
    ) -> None:
        super().__init__(layout)
        self._places = np.arange(self.trained, layout.size, dtype=np.uint32)
        self._robust = None if kind == "mean" else RobustMean(self.size, kind, trim=trim)
        self._added: list[tuple[NDArray[np.float64], Vector]] = []  # for a robust mean
        self._state = MixState() if state is None else state
        if not self._state.weight:
            self._state.begin(self.size)

    def add(self, statistics: Vector, share: Shares = 1.0, weight: float = 1.0) -> None:
        """Add a node's reported statistics (s,), their share a_i (a number or (s,)) and weight."""
        if not self.size:
            return
        part = np.minimum(np.asarray(share, dtype=np.float64), 1.0)
        state = self._state
        if self._robust is not None:
            self._added.append((part, statistics))
        part = part * weight
        state.sum += part * statistics
        state.shares += part
        state.weight += weight
        np.minimum(state.low, statistics, out=state.low)
        np.maximum(state.high, statistics, out=state.high)

    def joined(
        self, indices: Indices | None, values: Vector, there: Vector
    ) -> tuple[Indices | None, Vector]:
        """Append the new running statistics to the indices and values of the server's step.

        The new statistics are computed from the reports added since the last call; then these
        reports are deleted. `there`: the current model, float32 (n,); its last entries are the
        statistics.
        """
        if not self.size:
            return indices, values
        now = self.of(there)
        state = self._state
        mixed = self._mixed(now)
        low, high = np.minimum(state.low, now), np.maximum(state.high, now)
        # The combination is convex, but rounding to float32 can exceed the bounds.
        statistics = np.clip(mixed.astype(np.float32), low, high)
        state.begin(self.size)
        if indices is None and len(values) != self.trained:
            raise ValueError(f"{len(values)} values for {self.trained} parameters")
        places = None if indices is None else np.concatenate([indices, self._places])
        return places, np.concatenate([values, statistics])

    def _mixed(self, now: Vector) -> NDArray[np.floating[Any]]:
        state = self._state
        if self._robust is None:
            return ((state.weight - state.shares) * now + state.sum) / state.weight
        for share, statistics in self._added:
            self._robust.add(None, (now + share * (statistics - now)).astype(np.float32))
        self._added = []
        return self._robust.take()[1]


@dataclass
class NativeState:
    """The state of `NativeMix`; it holds only tensors that differ from their initial values.

    A report is the native tensors in a node's reply. `now`: the server's current tensors by name.
    `reports`: the reports since the last `take`, with their tensors by name. `shares`: for each
    report, the factor with which the server applies the node's update (a_i in `NativeMix`).
    `weights`: for each report, the node's weight in the mean. `nodes`: for each report, its node.
    `known`: the weights by node that `NodeMeans` stores.
    """

    now: dict[str, NDArray[Any]] = field(default_factory=dict)
    reports: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    known: dict[int, float] = field(default_factory=dict)


class NativeMix:
    """The native tensors at a server: means of the nodes' tensors, without the optimiser's step.

    Floats become x = (1 - mean of a_i) x + mean of a_i s_i, for the nodes' reports s_i. The share
    a_i, in 0..1, is the factor with which the server applies the node's update. Integers become the
    rounded mean of the reports. With `robust`, all tensors become the median of the reports
    instead. Vectors that are means over all nodes are left to `NodeMeans`.
    """

    def __init__(
        self,
        initial: Initial | None,
        state: NativeState,
        robust: bool = False,
    ) -> None:
        self.initial = NONE if initial is None else initial
        self._state, self._robust = state, robust
        self._means = NodeMeans(self.initial.vectors, state.known)

    @property
    def arrays(self) -> Arrays:
        """The server's current native tensors by name; treat them as read-only."""
        return {**self.initial.arrays, **self._state.now}

    def add(self, report: Arrays, share: float = 1.0, weight: float = 1.0, node: int = 0) -> None:
        """Add the native tensors of a node, with their share (a_i) and their weight in the mean."""
        if self.initial.arrays:
            self._state.reports.append(differing(report, self.initial.arrays))
            self._state.shares.append(min(share, 1.0))
            self._state.weights.append(weight)
            self._state.nodes.append(node)

    def take(self) -> None:
        """Compute the server's new tensors from the added reports, and delete the reports."""
        state = self._state
        if not state.reports:
            return
        now, means = self.arrays, self._means
        mixed = {name: self._mixed(name, now[name]) for name in now if name not in means.names}
        if means.names:
            first, weights = self.initial.arrays, dict(zip(state.nodes, state.weights, strict=True))
            every = [{**first, **report} for report in state.reports]
            mixed |= means.update(now, every, weights)
        state.now = differing(mixed, self.initial.arrays)
        state.reports, state.shares, state.weights, state.nodes = [], [], [], []

    def _mixed(self, name: str, now: NDArray[Any]) -> NDArray[Any]:
        first = self.initial.arrays[name]
        values = [report.get(name, first) for report in self._state.reports]
        if all(value is now for value in values):
            return now
        if self._robust:
            return median(values)
        weights = np.asarray(self._state.weights, dtype=np.float64)
        if now.dtype.kind != "f":
            return mean(values, list(weights))
        parts = weights * self._state.shares
        return mean([now, *values], [float(np.sum(weights - parts)), *parts])


def mean_of(factor: NDArray[np.float32] | np.float32) -> float:
    """Return the mean of the factors with which an update is applied; 1 for no factors.

    `factor`: one number, or one number for each parameter.
    """
    return float(np.mean(factor)) if np.size(factor) else 1.0
