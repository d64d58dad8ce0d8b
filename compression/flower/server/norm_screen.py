"""Scales down or refuses unusual updates before a strategy sees them.

An update is unusual by its L2 norm, by its BatchNorm statistics, or by its weight in the average.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ...base import DIVERGED, PayloadError
from ...batchnorm import separate
from ...layout import Layout
from ...screening import Screening
from ..native_tensors import Arrays, ByKind, distances
from ..records import Vector
from ..tensor_split import Model, TensorSplit, gathered_statistics, is_moving, statistics_of
from .statistics_averaging import mean
from .statistics_screen import LEAST, REACH, StatisticsScreen, StatisticsState, median_of, norm_of

log = getLogger("edgewire")


@dataclass
class NormScreenState:
    """State of `NormScreen`.

    By node: `norms`: the L2 norm of its last used update. `weights`: its last weight in training.
    `evaluations`: its last weight in an evaluation. `sums`: its last weight in metrics that are
    divided by sums. For all nodes: `usual`: the usual norm of an update (0: unknown). `since`: the
    number of updates used since `usual` was computed. `origin`: the norm of the first model, at
    least 1.
    """

    norms: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)
    sums: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    since: int = 0
    origin: float = 0.0


@dataclass
class ScreensState:
    """State of `Screens`: one for each of its screens (`floats`, `others`: see `ByKind`)."""

    vectors: NormScreenState = field(default_factory=NormScreenState)
    floats: NormScreenState = field(default_factory=NormScreenState)
    others: NormScreenState = field(default_factory=NormScreenState)
    statistics: StatisticsState = field(default_factory=StatisticsState)


class UpdateNorms(NamedTuple):
    """What `Screens` checks of a node's update.

    `vector`: the L2 norm of the change of the float32 vector, without BatchNorm's statistics.
    `natives`: the L2 norms of the changes of native tensors; None for a model without them.
    `statistics`, `sent`: BatchNorm's statistics in the reply and in the message, float32 (s,).
    """

    vector: float
    natives: ByKind | None
    statistics: Vector
    sent: Vector


def norms_of(
    form: TensorSplit, model: Model, asked: TensorSplit, start: Model
) -> UpdateNorms | None:
    """Compute the `UpdateNorms` of a reply; None if its tensors are not those of the message.

    `form`, `model`: of the node. `asked`, `start`: of the message. Raises `PayloadError` for values
    that the tensor's dtype in the message cannot hold.
    """
    theirs, ours = form.whole, asked.whole
    if (theirs.names, theirs.shapes) != (ours.names, ours.shapes):
        return None
    if theirs != ours or form.beside != asked.beside:
        model = asked.model(form.arrays(model))
    natives = distances(
        {each.name: each.array for each in model.own if not is_moving(each)},
        {each.name: each.array for each in start.own},
    )
    moved = model.vector - start.vector
    if inside := statistics_of(asked)[1]:
        moved = separate(asked.layout, inside).gather(moved)
    statistics = gathered_statistics(asked, model), gathered_statistics(asked, start)
    return UpdateNorms(norm_of(moved), natives if start.own else None, *statistics)


def scaled(natives: Arrays, start: Mapping[str, NDArray[Any]], factors: ByKind) -> Arrays:
    """Multiply the changes of native tensors from `start`, which holds tensors by name.

    Integers are rounded. A tensor that is not in `start`, or whose factor is 1, stays as it is.
    """
    found = {}
    for name, array in natives.items():
        factor = factors.floats if array.dtype.kind == "f" else factors.others
        if factor < 1 and name in start and array is not start[name]:
            array = mean([array, start[name]], [factor, 1 - factor]).astype(array.dtype)
        found[name] = array
    return found


class NormScreen:
    """Limits the L2 norms of nodes' updates and the nodes' weights in the average.

    The server repeatedly takes the median of the norms of all nodes' last used updates. The usual
    norm is the largest of these medians so far. The usual weight is the median of the weights that
    the nodes sent last.

    `every_round`: True if `observe` is called with the updates of each round, because the nodes'
    numbers of local steps change from round to round. Then the usual norm is at least the median of
    the newest norms. A norm is not divided by the steps, because nodes report these themselves.
    `unchanged`: the norm that counts as usual while at least half of the nodes change nothing, and
    the smallest one for `Screening.refuse`: a node with few samples may change SCAFFOLD's control
    variates far more than others, late in an honest run.
    """

    def __init__(
        self,
        options: Screening | None = None,
        state: NormScreenState | None = None,
        *,
        every_round: bool = False,
        unchanged: float = 0.0,
    ) -> None:
        self.options = Screening() if options is None else options
        self._every_round, self._unchanged = every_round, unchanged
        self._state = NormScreenState() if state is None else state
        self._now = 0.0  # the usual norm in this round, if `observe` has computed it

    @property
    def knows(self) -> bool:
        """Whether the usual norm of updates is known; if not, call `observe` in each round."""
        return len(self._state.norms) >= LEAST and not self._every_round

    def observe(self, norms: Mapping[int, float]) -> None:
        """Compute the usual norm of updates from one round's norms by node.

        Without `every_round`, the result is used only until the norms of LEAST nodes are known.
        """
        found = {**self._state.norms, **norms}
        self._now = 0.0 if len(found) < LEAST or self.knows else self._middle(found)

    def _middle(self, norms: Mapping[int, float]) -> float:
        return median_of(norms.values()) or self._unchanged

    def clip_factor(self, node: int, long: float, model: Vector | None, rate: float = 1.0) -> float:
        """Return the factor, at most 1, that limits a node's update, and count the update as used.

        `long`: the update's L2 norm. `model`: the model that it changes; None: unknown. `rate`: at
        which the server applies it. Raises `PayloadError` for an update that is refused.
        """
        usual, options = max(self._state.usual, self._now), self.options
        if not math.isfinite(long):
            raise PayloadError(f"its update is beyond float32: {DIVERGED}")
        if options.refuse is not None:
            if usual and long > options.refuse * max(usual, self._unchanged):
                raise PayloadError(
                    f"its update is {long / usual:.3g} times as long as usual "
                    f"(screen.refuse={options.refuse:g})"
                )
            if not usual and model is not None:
                self._state.origin = self._state.origin or max(norm_of(model), 1.0)
                if long * rate > REACH * self._state.origin:
                    raise PayloadError(
                        "its update, the first, is many times as long as the model "
                        "(screen.refuse=null accepts it; scale targets that are far above 1, or "
                        "lower lr=)"
                    )
        share = 1.0
        if options.clip is not None and usual and long > options.clip * usual:
            share = options.clip * usual / long
        self._used(node, long * share)
        return share

    def _used(self, node: int, long: float) -> None:
        state = self._state
        state.norms[node] = long
        state.since += 1
        if len(state.norms) >= LEAST and state.since >= len(state.norms) // 4:
            state.since, state.usual = 0, max(state.usual, self._middle(state.norms))

    def cap_weights(
        self, weights: dict[int, float], *, kind: str = "weights", steps: bool = False
    ) -> dict[int, float]:
        """Limit the nodes' weights by `Screening.weight`; store the weights before the limit.

        `kind`: where `NormScreenState` stores them. Each kind has a usual weight of its own. With
        `Screening.equal`, a weight in `sums` is at most the usual one; all others are 1.
        `steps`: True if the weights are numbers of local steps, of which a node may report any
        number. Then a weight is also at most twice the second largest.
        """
        if self.options.equal and kind != "sums":
            return dict.fromkeys(weights, 1.0)
        known: dict[int, float] = getattr(self._state, kind)
        known |= weights
        factor = 1.0 if self.options.equal else self.options.weight
        if factor is None or len(known) < LEAST:
            return weights
        limit = factor * median_of(known.values())
        if steps:
            limit = min(limit, 2 * sorted(known.values())[-2])
        return {node: min(weight, limit) for node, weight in weights.items()}


WHOLE = ByKind()  # the factors of native tensors of which all may be used


class Screened(NamedTuple):
    """What may be used of an update.

    `share`: the factor of the change of its float32 vector, at most 1. `natives`: the factors of
    the changes of its native tensors, at most `share`. `statistics`: the BatchNorm statistics to
    use, (s,).
    """

    share: float
    natives: ByKind
    statistics: Vector

    def limits(self, norms: UpdateNorms) -> bool:
        """Return whether less may be used than the whole update, which `norms` describes."""
        whole = self.share == 1 and self.natives == WHOLE
        return not whole or self.statistics is not norms.statistics


class Screens:
    """Limits nodes' updates and weights: the float32 vector, native tensors, and statistics."""

    def __init__(
        self,
        options: Screening | None = None,
        state: ScreensState | None = None,
        *,
        every_round: bool = False,
    ) -> None:
        state = ScreensState() if state is None else state
        self.vectors = NormScreen(options, state.vectors, every_round=every_round)
        self._natives = [
            NormScreen(options, each, every_round=every_round, unchanged=1.0)
            for each in (state.floats, state.others)
        ]
        self._statistics = StatisticsScreen(options, state.statistics)

    def observe(self, found: Mapping[Layout, Mapping[int, UpdateNorms]]) -> None:
        """Compute, from one round's updates, what is usual (see `NormScreen.observe`).

        `found`: the updates by node, by the layout of their statistics.
        """
        every = {node: norms for same in found.values() for node, norms in same.items()}
        if not self.vectors.knows:
            self.vectors.observe({node: norms.vector for node, norms in every.items()})
            natives = {node: norms.natives for node, norms in every.items() if norms.natives}
            for kind, each in enumerate(self._natives):
                each.observe({node: norms[kind] for node, norms in natives.items()})
        for layout, same in found.items():
            reports = [(norms.statistics, norms.sent) for norms in same.values()]
            self._statistics.observe(layout, reports)

    def screen(
        self, node: int, layout: Layout, norms: UpdateNorms, model: Vector, rate: float = 1.0
    ) -> Screened:
        """Return how far a node's update may be used, and count the update as used.

        `layout`: the layout of the statistics. `model`, `rate`, errors: as in `clip_factor`.
        """
        limits = zip(self._natives, norms.natives or (), strict=bool(norms.natives))
        natives = [each.clip_factor(node, long, None) for each, long in limits]
        statistics = self._statistics.taken(node, layout, norms.statistics, norms.sent, model)
        share = self.vectors.clip_factor(node, norms.vector, model, rate)
        limited = ByKind(*[min(share, each) for each in natives]) if natives else WHOLE
        return Screened(share, limited, statistics)
