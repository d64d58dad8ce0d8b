"""Scales down or refuses unusual updates before a strategy sees them.

An update is unusual by its L2 norm, by its BatchNorm statistics, or by its weight in the average.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base import DIVERGED, PayloadError
from ...batchnorm import separate
from ...layout import Layout
from ...screening import Screening
from ..records import Vector
from ..tensor_split import (
    Model,
    TensorSplit,
    gathered_statistics,
    is_moving,
    statistics_of,
)
from .statistics_screen import LEAST, REACH, StatisticsScreen, StatisticsState, median_of, norm_of

log = getLogger("edgewire")


@dataclass
class UpdateFilterState:
    """State of `UpdateFilter`.

    By node: `norms`: the L2 norm of its last used update. `weights`: its last weight in training.
    `evaluations`: its last weight in an evaluation. For all nodes: `usual`: the usual norm of an
    update (0: unknown). `since`: the number of updates used since `usual` was computed. `origin`:
    the norm of the first model, at least 1.
    """

    norms: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    since: int = 0
    origin: float = 0.0


@dataclass
class UpdateFiltersState:
    """State of `UpdateFilters`: one for each of its three filters."""

    vectors: UpdateFilterState = field(default_factory=UpdateFilterState)
    natives: UpdateFilterState = field(default_factory=UpdateFilterState)
    statistics: StatisticsState = field(default_factory=StatisticsState)


class UpdateNorms(NamedTuple):
    """What `UpdateFilters` checks of a node's update.

    `vector`: the L2 norm of the change of the float32 vector, without BatchNorm's statistics.
    `natives`: the L2 norm of the change of the native tensors; None for a model without them.
    `statistics`, `sent`: BatchNorm's statistics in the reply and in the message, float32 (s,).
    """

    vector: float
    natives: float | None
    statistics: Vector
    sent: Vector


def norms_of(
    form: TensorSplit, model: Model, asked: TensorSplit, start: Model
) -> UpdateNorms | None:
    """Compute the `UpdateNorms` of a reply; None if its tensors are not those of the message.

    `form`, `model`: the node's model and how it is split (`TensorSplit`). `asked`, `start`: the
    same for the model in the message. Raises `PayloadError` for values that the tensor's dtype in
    the message cannot hold.
    """
    theirs, ours = form.whole, asked.whole
    if (theirs.names, theirs.shapes) != (ours.names, ours.shapes):
        return None
    if theirs != ours or form.beside != asked.beside:
        model = asked.model(form.arrays(model))
    own = [pair for pair in zip(model.own, start.own, strict=True) if not is_moving(pair[0])]
    natives = math.hypot(*(_distance(new.array, old.array) for new, old in own))
    moved = model.vector - start.vector
    if inside := statistics_of(asked)[1]:
        moved = separate(asked.layout, inside).gather(moved)
    statistics = gathered_statistics(asked, model), gathered_statistics(asked, start)
    return UpdateNorms(norm_of(moved), natives if start.own else None, *statistics)


def _distance(new: NDArray[Any], old: NDArray[Any]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.where(new == old, 0.0, new.astype(np.float64) - old)
        return float(np.linalg.norm(moved))


class UpdateFilter:
    """Limits the L2 norms of nodes' updates and the nodes' weights in the average.

    The server repeatedly takes the median of the norms of all nodes' last used updates. The usual
    norm is the largest of these medians so far. The usual weight is the median of the weights that
    the nodes sent last.
    `floor`: the lower bound of the usual norm.
    """

    def __init__(
        self,
        options: Screening | None = None,
        state: UpdateFilterState | None = None,
        floor: float = 0.0,
    ) -> None:
        self._options = Screening() if options is None else options
        self._floor = floor
        self._state = UpdateFilterState() if state is None else state
        self._now = 0.0  # the usual norm in the first round, before `usual` is known

    @property
    def knows(self) -> bool:
        """Whether the usual norm of updates is known; if not, call `observe` in each round."""
        return len(self._state.norms) >= LEAST

    @property
    def equal(self) -> bool:
        """Whether all nodes have the same weight."""
        return self._options.equal

    def observe(self, norms: Iterable[float]) -> None:
        """Compute the usual norm of updates from one round's norms.

        The result is used only until the norms of LEAST nodes are known.
        """
        found = [*self._state.norms.values(), *norms]
        few = len(found) < LEAST or self.knows
        self._now = 0.0 if few else max(median_of(found), self._floor)

    def clip_factor(self, node: int, long: float, model: Vector | None, rate: float = 1.0) -> float:
        """Return the factor, at most 1, that limits a node's update, and count the update as used.

        `long`: the update's L2 norm. `model`: the model that the update changes; None if it is
        unknown. `rate`: the rate at which the server applies the update. Raises `PayloadError` for
        an update that is refused.
        """
        usual, options = max(self._state.usual, self._now), self._options
        if not math.isfinite(long):
            raise PayloadError(f"its update is beyond float32: {DIVERGED}")
        if options.refuse is not None:
            if usual and long > options.refuse * usual:
                raise PayloadError(
                    f"its update is {long / usual:.3g} times as long as usual "
                    f"(screen.refuse={options.refuse:g})"
                )
            if not usual and model is not None and long * rate > REACH * self._reach(model):
                raise PayloadError(
                    "its update, the first, is many times as long as the model (screen.refuse=null "
                    "accepts it; scale targets that are far above 1, or lower lr=)"
                )
        share = 1.0
        if options.clip is not None and usual and long > options.clip * usual:
            share = options.clip * usual / long
        self._used(node, long * share)
        return share

    def _reach(self, model: Vector) -> float:
        """Return the L2 norm of the run's first model, at least 1.

        The first call stores it; later calls ignore `model`.
        """
        self._state.origin = self._state.origin or max(norm_of(model), 1.0)
        return self._state.origin

    def _used(self, node: int, long: float) -> None:
        state = self._state
        state.norms[node] = long
        state.since += 1
        if self.knows and state.since >= len(state.norms) // 4:
            state.since = 0
            state.usual = max(state.usual, median_of(state.norms.values()), self._floor)

    def cap_weights(
        self, weights: dict[int, float], *, evaluated: bool = False
    ) -> dict[int, float]:
        """Limit the nodes' weights by `Screening.weight`; store the weights before the limit.

        `evaluated`: True for weights of evaluations. Their usual weight is computed separately.
        """
        if self._options.equal:
            return dict.fromkeys(weights, 1.0)
        known = self._state.evaluations if evaluated else self._state.weights
        known |= weights
        factor = self._options.weight
        if factor is None or len(known) < LEAST:
            return weights
        limit = factor * median_of(known.values())
        return {node: min(weight, limit) for node, weight in weights.items()}

    def forget(self, nodes: Iterable[int]) -> None:
        """Delete the state of nodes that have left the run."""
        for node in nodes:
            self._state.norms.pop(node, None)
            self._state.weights.pop(node, None)
            self._state.evaluations.pop(node, None)


class Screened(NamedTuple):
    """The factor that limits an update, at most 1, and the BatchNorm statistics to use, (s,)."""

    share: float
    statistics: Vector


class UpdateFilters:
    """Limits nodes' updates and weights: the float32 vector, native tensors, and statistics."""

    def __init__(
        self, options: Screening | None = None, state: UpdateFiltersState | None = None
    ) -> None:
        state = UpdateFiltersState() if state is None else state
        self.vectors = UpdateFilter(options, state.vectors)
        self._natives = UpdateFilter(options, state.natives, floor=1.0)
        self._statistics = StatisticsScreen(options, state.statistics)

    @property
    def knows(self) -> bool:
        """Whether the usual norm of updates is known; if not, call `observe` in each round."""
        return self.vectors.knows

    def observe(self, found: Mapping[Layout, Sequence[UpdateNorms]]) -> None:
        """Compute, from one round's updates, what is usual (see `UpdateFilter.observe`).

        `found`: the updates, by the layout of their statistics.
        """
        every = [norms for same in found.values() for norms in same]
        if not self.vectors.knows:
            self.vectors.observe(norms.vector for norms in every)
            self._natives.observe(norms.natives for norms in every if norms.natives is not None)
        for layout, same in found.items():
            self._statistics.observe(layout, [(norms.statistics, norms.sent) for norms in same])

    def screen(
        self, node: int, layout: Layout, norms: UpdateNorms, model: Vector, rate: float = 1.0
    ) -> Screened:
        """Return how far a node's update may be used, and count the update as used.

        `layout`: the layout of the statistics. `model`: the model that the update changes. `rate`:
        the rate at which the server applies the update. Raises `PayloadError` for an update that is
        refused.
        """
        if norms.natives is not None:
            self._natives.clip_factor(node, norms.natives, None)
        statistics = self._statistics.taken(node, layout, norms.statistics, norms.sent, model)
        return Screened(self.vectors.clip_factor(node, norms.vector, model, rate), statistics)

    def forget(self, nodes: Collection[int]) -> None:
        """Delete the state of nodes that have left the run."""
        for each in (self.vectors, self._natives, self._statistics):
            each.forget(nodes)
