"""Averages nodes' updates: sparse updates, BatchNorm's running statistics, native tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgewire.compression.base import Indices, Vector
from edgewire.compression.flower.headers import EXAMPLES, STEPS
from edgewire.compression.flower.native_tensors import (
    NONE,
    Arrays,
    Initial,
    LocalVectors,
    differing,
)
from edgewire.compression.flower.server.statistics_averaging import median
from edgewire.compression.flower.server.statistics_screen import StatisticsSplit
from edgewire.compression.layout import Layout
from edgewire.compression.scatter import add_at
from edgewire.conf.option_group import OptionGroup, bounded
from edgewire.strategy.robust_aggregation import ABSENT, KINDS, RobustMean
from edgewire.strategy.update_mean import UpdateMean

WEIGHTS = (EXAMPLES, STEPS)  # metrics that every node reports


@dataclass(eq=False)
class SparseMean(UpdateMean):
    """The weighted mean of updates of n entries; an entry that a node did not send counts as 0.

    `size`: n. `sender_exponent`: an entry of the mean is multiplied by (W / w)^`sender_exponent`,
    where W is the weight of all nodes and w is that of the nodes that sent the entry. With 0 it is
    the mean over all nodes, and with 1 the mean over the nodes that sent the entry.

    The other fields are the updates so far, as a checkpoint holds them. `sum`: their weighted sum,
    float32 (n,). `sets`: the indices of each sparse update. `dense`: whether one of them was dense.
    `weight`: the sum of their weights. `sent`: the weight of the sparse updates that hold an entry,
    float32 (n,), or (0,) without a `sender_exponent`. `whole`: the weight of the dense updates. So
    it needs five bytes of memory for each entry, for any number of nodes; nine with an exponent.
    """

    size: int = 0
    sender_exponent: float = 0.0
    sum: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    sets: list[NDArray[np.uint32]] = field(default_factory=list)
    dense: bool = False
    weight: float = 0.0
    sent: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    whole: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.sum):
            self.sum = np.zeros(self.size, dtype=np.float32)
            self.sent = np.zeros(self.size if self.sender_exponent else 0, dtype=np.float32)
        self._mark: NDArray[np.bool_] = np.zeros(self.size, dtype=np.bool_)

    def add(self, indices: Indices | None, values: Vector, weight: float = 1.0) -> None:
        """Add a node's update to the weighted sum.

        `values`: float32 (k,) at the increasing `indices`, or (n,) if `indices` is None. `weight`:
        the node's weight in the mean.
        """
        self.weight += weight
        values = values if weight == 1.0 else values * np.float32(weight)
        if indices is None:
            self.dense = True
            self.whole += weight
            self.sum += values
        else:
            self.sets.append(indices)
            add_at(self.sum, indices, values)
            if self.sender_exponent:
                self.sent[indices] += np.float32(weight)  # the indices are distinct

    def take(self) -> tuple[Indices | None, Vector]:
        """Return the mean of the added updates, and begin a new mean.

        The result is (indices, values): the union of the updates' indices (None: all n entries),
        and the mean at these indices.
        """
        weight = np.float32(self.weight)
        union = None if self.dense else self._union()
        if union is None:
            values = self.sum / weight
            self.sum.fill(0)
        else:
            values = self.sum[union] / weight
            self.sum[union] = 0
        if self.sender_exponent:
            held = slice(None) if union is None else union
            sent = self.sent[held] + np.float32(self.whole)
            # An entry that no node sent is 0, whatever its factor is.
            exponent = np.float32(self.sender_exponent)
            values *= (weight / np.where(sent > 0, sent, weight)) ** exponent
            self.sent[held] = 0
        self.sets, self.dense, self.weight, self.whole = [], False, 0.0, 0.0
        return union, values

    def _union(self) -> Indices | None:
        """Return the increasing union of all added indices; None if it holds all n entries."""
        if len(self.sets) == 1:
            union = self.sets[0]
        else:
            for indices in self.sets:
                self._mark[indices] = True
            union = np.flatnonzero(self._mark).astype(np.uint32)
            self._mark[union] = False
        return None if len(union) == len(self.sum) else union


@dataclass(frozen=True)
class Aggregation(OptionGroup):
    """Says how the server combines the updates of a round.

    `weighted_by_key`: the metric with a node's weight in the mean; None: equal weights. `mean`:
    "mean", "median", "trimmed", or an object of one's own. With a median or a trimmed mean, a few
    bad nodes have little influence. An object combines the updates alone: BatchNorm's statistics
    and native tensors become their weighted mean. `trim`, `absent`: the parameters of `RobustMean`,
    which computes a median and a trimmed mean. `sender_exponent`: of `SparseMean`; only for
    `mean="mean"`.
    """

    weighted_by_key: str | None = bounded(None, one_of=WEIGHTS)
    mean: str | UpdateMean = bounded("mean", one_of=KINDS, or_a=UpdateMean)  # noqa: RUF009  # a field
    trim: float = bounded(0.2, at_least=0, below=0.5)
    absent: str = bounded("zero", one_of=ABSENT)
    sender_exponent: float = bounded(0.0, at_least=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sender_exponent and self.mean != "mean":
            name = self.mean if isinstance(self.mean, str) else type(self.mean).__name__
            raise ValueError(f"sender_exponent does not go with mean={name}: drop it")

    @property
    def kind(self) -> str:
        """How the server averages statistics and native tensors: one of `KINDS`."""
        return self.mean if isinstance(self.mean, str) else "mean"

    def mean_of(self, size: int) -> UpdateMean:
        """Return the mean of updates of `size` entries."""
        if isinstance(self.mean, UpdateMean):
            self.mean.begin(size)
            return self.mean
        if self.mean == "mean":
            return SparseMean(size, sender_exponent=self.sender_exponent)
        return RobustMean(size, self.mean, trim=self.trim, absent=self.absent)


EQUAL = Aggregation()  # the mean with equal weights
Shares = NDArray[np.float32] | np.float32 | float
STATISTICS = ""  # the name of BatchNorm's statistics among the reported tensors


@dataclass
class TensorSum:
    """Sums over the reports of one tensor, an array of any shape.

    `sum`: the sum of weight * share * report. `shares`: the sum of weight * share, one number or
    one for each entry. `weight`: the sum of the weights. `low`, `high`: the least and the largest
    report.
    """

    sum: NDArray[Any]
    shares: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    weight: float

    @classmethod
    def of(cls, report: NDArray[Any], shares: float = 0.0, weight: float = 0.0) -> Self:
        """Return the sums over reports that all equal `report`, if any; see the class."""
        total = shares * report.astype(np.float64) if shares else np.zeros(report.shape)
        return cls(np.asarray(total), np.asarray(shares), report, report, weight)

    def add(self, report: NDArray[Any], share: NDArray[np.float64], weight: float) -> None:
        """Add a node's report with its share and its weight."""
        part = share * weight
        self.low = np.asarray(np.minimum(self.low, report))  # a 0-d result is a scalar
        self.high = np.asarray(np.maximum(self.high, report))
        if part.any():  # an infinity times 0 is NaN
            self.sum = np.asarray(self.sum + part * report)
        self.shares, self.weight = np.asarray(self.shares + part), self.weight + weight

    def mixed(self, now: NDArray[Any]) -> NDArray[Any]:
        """Return (1 - mean share) * `now` + mean of share * report, in the dtype of `now`.

        Integers become the rounded mean of the reports. The result is between the least and the
        largest of the reports and, for floats, of `now`. If these are equal, it has their value.
        """
        kind, low, high = now.dtype.kind, self.low, self.high
        with np.errstate(invalid="ignore", over="ignore"):
            if kind == "f":
                low, high = np.minimum(low, now), np.maximum(high, now)
                rest = self.weight - self.shares
                total = (rest * now + self.sum if rest.any() else self.sum) / self.weight
                total = np.where(np.isnan(total), low, total)  # infinities of both signs
            elif kind == "b":
                return np.asarray(self.sum / self.weight >= 0.5)
            else:
                total = np.rint(self.sum / self.weight)
            # The combination is convex, but rounding to the dtype can exceed the bounds.
            inside = np.clip(np.clip(total, low, high).astype(now.dtype), low, high)
        return np.asarray(np.where(low == high, low, inside))


class NodeMeans:
    """The server's vectors of which each is the weighted mean c of the vectors c_i of all nodes.

    A node that trains changes c_i to c_i', and reports c + share (c_i' - c_i). Reports may be lost,
    refused or late. So with the weights w_i and the set U of the nodes whose reports are used, the
    new c is c + sum over U of w_i (c_i' - c_i) / W, where W is the weight of all nodes. In SCAFFOLD
    (Karimireddy et al. 2020, Algorithm 1) this is line 17. A node without a used report so far has
    c_i = 0. It counts in W with the mean weight of the other nodes, and c is scaled when its weight
    becomes known. A node keeps the weight of its first used report, so that the same weight adds
    and later removes a c_i.

    `vectors`: their names, the share, and the number of all nodes. `weights`: the nodes' weights by
    node, which `update` extends.
    """

    def __init__(self, vectors: LocalVectors, weights: dict[int, float]) -> None:
        self._vectors, self._weights = vectors, weights
        self.names = vectors.names if vectors.nodes else ()

    def weight_of(self, node: int, weight: float) -> float:
        """Return a node's weight, which is `weight` if no report of this node was used so far."""
        return self._weights.get(node, weight)

    def update(self, now: Arrays, mixed: Arrays, weights: Mapping[int, float]) -> Arrays:
        """Return the new vectors by name.

        `now`: the server's vectors. `mixed`: the means of the vectors that nodes reported, with the
        weights that `weight_of` returns. `weights`: the weights of these nodes in this round.
        """
        before = self._total()
        for node, weight in weights.items():
            self._weights.setdefault(node, weight)
        used, after = math.fsum(self._weights[node] for node in weights), self._total()
        scale, step = (before or after) / after, used / after / self._vectors.share
        changed = {}
        for name in self.names:
            old, new = now[name], mixed[name]
            if scale != 1 or step != 1:
                new = scale * old.astype(np.float64) + step * (new - old.astype(np.float64))
            changed[name] = np.asarray(new, dtype=old.dtype)
        return changed

    def _total(self) -> float:
        """Return the weight of all nodes; 0 if no weight is known yet."""
        known = math.fsum(self._weights.values())
        missing = max(self._vectors.nodes - len(self._weights), 0)
        return known + missing * known / max(len(self._weights), 1)


@dataclass
class ReportedState:
    """The state of `ReportedTensors`; it holds only native tensors that were changed.

    `now`: the server's native tensors by name. `sums`: by name, the sums over the reports that are
    not averaged yet. `shares`, `weight`: of these reports, the sums of weight * share and of the
    weights. `nodes`: their weights by node. `known`: the weights by node that `NodeMeans` stores.
    """

    now: dict[str, NDArray[Any]] = field(default_factory=dict)
    sums: dict[str, TensorSum] = field(default_factory=dict)
    shares: float = 0.0
    weight: float = 0.0
    nodes: dict[int, float] = field(default_factory=dict)
    known: dict[int, float] = field(default_factory=dict)


class ReportedTensors(StatisticsSplit):
    """Averages the tensors that nodes report as values: running statistics and native tensors.

    x = (1 - mean of a_i) x + mean of a_i s_i, for reports s_i. The share a_i, in 0..1, is the
    factor with which the server applies the node's update. So the result is always between the
    smallest and the largest of x and the reports. Reports hold values, because changes could make a
    variance negative: a change may be stale, or an optimiser may have scaled it. With a negative
    variance the model's outputs would be NaN. Integers become the rounded mean of the reports.
    Vectors that are means over all nodes are left to `NodeMeans`.

    `kind="mean"` computes this formula. `kind="median"` and `kind="trimmed"` compute, for each
    statistic, the median or the trimmed mean of (1 - a_i) x + a_i s_i (`RobustMean`). A native
    tensor then becomes the median of the reports. These two kinds ignore the nodes' weights in the
    mean, and keep a round's reports in memory. `trim`: the share that the trimmed mean cuts off at
    each end.
    """

    def __init__(
        self,
        layout: Layout,
        initial: Initial | None = None,
        state: ReportedState | None = None,
        *,
        kind: str = "mean",
        trim: float = 0.0,
    ) -> None:
        super().__init__(layout)
        self._places = np.arange(self.trained, layout.size, dtype=np.uint32)
        self._initial = NONE if initial is None else initial
        self._robust = None if kind == "mean" else RobustMean(self.size, kind, trim=trim)
        self._added: list[tuple[NDArray[np.float64], Arrays]] = []  # for robust means
        self._state = ReportedState() if state is None else state
        self._means = NodeMeans(self._initial.vectors, self._state.known)

    @property
    def natives(self) -> Arrays:
        """The server's current native tensors by name; treat them as read-only."""
        return {**self._initial.arrays, **self._state.now}

    def add(
        self,
        statistics: Vector,
        natives: Arrays,
        share: Shares = 1.0,
        weight: float = 1.0,
        node: int = 0,
        *,
        natives_share: float | None = None,
    ) -> None:
        """Add a node's statistics (s,) and native tensors by name.

        `share`: a_i, one number or one for each statistic. `natives_share`: that of the native
        tensors; None: `share`. `weight`: the node's weight in the mean.
        """
        state, reports = self._state, {STATISTICS: statistics} if self.size else {}
        part = np.minimum(np.asarray(share, dtype=np.float64), 1.0)
        if self._robust is not None and (reports or natives):
            self._added.append((part, {**reports, **natives}))
        elif reports:
            self._sum(STATISTICS, statistics, part, weight)
        if not natives:
            return
        part = part if natives_share is None else np.asarray(min(natives_share, 1.0))
        now, whole = self.natives, np.ones(())
        for name, report in natives.items():
            if name in self._means.names:
                self._sum(name, report, whole, self._means.weight_of(node, weight))
            elif self._robust is None and (name in state.sums or report is not now[name]):
                floats = report.dtype.kind == "f"
                if name not in state.sums and state.weight:  # so far, all reports were `now`
                    shares = state.shares if floats else state.weight
                    state.sums[name] = TensorSum.of(now[name], shares, state.weight)
                self._sum(name, report, part if floats else whole, weight)
        state.shares, state.weight = state.shares + float(part) * weight, state.weight + weight
        state.nodes[node] = weight

    def _sum(
        self, name: str, report: NDArray[Any], share: NDArray[np.float64], weight: float
    ) -> None:
        sums = self._state.sums
        if name not in sums:
            sums[name] = TensorSum.of(report)
        sums[name].add(report, share, weight)

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
        if self._robust is None:
            statistics = self._state.sums.pop(STATISTICS).mixed(now)
        else:
            reports = [tensors[STATISTICS] for _, tensors in self._added]
            for (share, _), report in zip(self._added, reports, strict=True):
                self._robust.add(None, (now + share * (report - now)).astype(np.float32))
            low, high = np.minimum.reduce([*reports, now]), np.maximum.reduce([*reports, now])
            statistics = np.clip(self._robust.take()[1], low, high)
        if indices is None and len(values) != self.trained:
            raise ValueError(f"{len(values)} values for {self.trained} parameters")
        places = None if indices is None else np.concatenate([indices, self._places])
        return places, np.concatenate([values, statistics])

    def take(self) -> None:
        """Compute the server's new native tensors from the added reports; delete the reports."""
        state, now, added = self._state, self.natives, self._added
        if state.nodes:
            mixed = {n: s.mixed(now[n]) for n, s in state.sums.items() if n != STATISTICS}
            if added:
                for name in now.keys() - set(self._means.names):
                    reports = [tensors[name] for _, tensors in added]
                    if any(report is not now[name] for report in reports):
                        mixed[name] = median(reports)
            if self._means.names:
                mixed |= self._means.update(now, mixed, state.nodes)
            state.now = differing({**now, **mixed}, self._initial.arrays)
            state.sums = {n: each for n, each in state.sums.items() if n == STATISTICS}
            state.shares, state.weight, state.nodes = 0.0, 0.0, {}
        self._added = []
