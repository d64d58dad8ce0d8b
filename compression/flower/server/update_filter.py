"""Scales down or refuses unusual updates before a strategy sees them.

An update is unusual by its L2 norm, by its BatchNorm statistics, or by its weight in the average.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from ...base import DIVERGED, PayloadError
from ...batchnorm import Scale, scale_of, separate
from ...layout import Layout
from ...screening import Screening
from ..native_tensors import natives_of, with_natives
from ..records import FLAT, Vector, flat_record, layout_of, records, to_vector
from ..tensor_split import (
    Model,
    TensorSplit,
    form_of_updates,
    gathered_statistics,
    is_moving,
    statistics_of,
    with_statistics,
)
from .inbox import SentMessage

log = getLogger("edgewire")
LEAST = 3  # the fewest nodes from which a usual norm, change or weight is computed
FLOOR = 0.2  # the lower bound of the usual change of statistics, in standard deviations
RECENT = 15  # the most nodes whose statistics are stored, for their median
REACH = 10.0  # while the usual norm is unknown: the largest norm, in units of the model's norm


@dataclass
class UpdateFilterState:
    """State of `UpdateFilter`.

    By node: `lengths`: the L2 norm of its last used update. `weights`: its last weight in training.
    `evaluations`: its last weight in an evaluation. For all nodes: `usual`: the usual norm of an
    update (0: unknown). `since`: the number of updates used since `usual` was computed. `origin`:
    the norm of the first model, at least 1.
    """

    lengths: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    since: int = 0
    origin: float = 0.0


def length(*parts: Vector) -> float:
    """Return the L2 norm of the concatenated vectors; infinity if its square exceeds float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(sum(float(np.dot(part, part)) for part in parts))


class Lengths(NamedTuple):
    """The L2 norms of a node's update, and BatchNorm's statistics before and after it."""

    vector: float  # L2 norm of the change of the float32 vector, without statistics
    beside: float  # L2 norm of the change of native tensors, without statistics
    statistics: Vector  # the statistics in the reply, float32 (s,)
    sent: Vector  # the statistics in the message, float32 (s,)


def lengths(form: TensorSplit, model: Model, asked: TensorSplit, start: Model) -> Lengths | None:
    """Compute the `Lengths` of a reply; None if its tensors are not those of the message.

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
    beside = math.hypot(*(_distance(new.array, old.array) for new, old in own))
    moved = model.vector - start.vector
    if inside := statistics_of(asked)[1]:
        moved = separate(asked.layout, inside).gather(moved)
    statistics = gathered_statistics(asked, model), gathered_statistics(asked, start)
    return Lengths(length(moved), beside, *statistics)


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
        return len(self._state.lengths) >= LEAST

    @property
    def equal(self) -> bool:
        """Whether all nodes have the same weight."""
        return self._options.equal

    def observe(self, lengths: Iterable[float]) -> None:
        """Compute the usual norm of updates from one round's norms.

        The result is used only until the norms of LEAST nodes are known.
        """
        found = [*self._state.lengths.values(), *lengths]
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
                raise PayloadError("its update, the first, is many times as long as the model")
        share = 1.0
        if options.clip is not None and usual and long > options.clip * usual:
            share = options.clip * usual / long
        self._used(node, long * share)
        return share

    def _reach(self, model: Vector) -> float:
        """Return the L2 norm of the run's first model, at least 1.

        The first call stores it; later calls ignore `model`.
        """
        self._state.origin = self._state.origin or max(length(model), 1.0)
        return self._state.origin

    def _used(self, node: int, long: float) -> None:
        state = self._state
        state.lengths[node] = long
        state.since += 1
        if self.knows and state.since >= len(state.lengths) // 4:
            state.since = 0
            state.usual = max(state.usual, median_of(state.lengths.values()), self._floor)

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
            self._state.lengths.pop(node, None)
            self._state.weights.pop(node, None)
            self._state.evaluations.pop(node, None)


def median_of(values: Iterable[float]) -> float:
    """Return the median of numbers; of two middle values the lower; 0 without numbers."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if found else 0.0


@dataclass
class StatisticsState:
    """State of `StatisticsScreen`.

    By node, the most recent last: `reports`: the node's last statistics, (s,). `moves`: the
    distance of these statistics from those in the message. For all nodes: `usual`: the usual
    distance between statistics in a message and in its reply (0: unknown). `centre`: the median of
    the reports, (s,). `since`: the number of reports used since `usual` and `centre` were computed.
    `names`: the names of the statistics. `origin`: the L2 norm of the first model, at least 1.
    """

    names: list[str] = field(default_factory=list)
    reports: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    moves: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    centre: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    since: int = 0
    origin: float = 0.0


class StatisticsScreen:
    """Limits how far BatchNorm's statistics may be from the median of the nodes' last statistics.

    This median is called the centre. A node's change is the distance between the statistics in a
    message and those in the node's reply. The server repeatedly takes the median of the nodes'
    changes. The usual change is the largest of these medians so far. The limits of `Screening` are
    multiples of the usual change. The server's own statistics are not used as the centre, because
    in every new model they are 0 and 1.
    """

    def __init__(
        self, options: Screening | None = None, state: StatisticsState | None = None
    ) -> None:
        self._options = Screening() if options is None else options
        self._state = StatisticsState() if state is None else state
        # `_now`: the usual change, and the median of the statistics, from the first round alone.
        # `_left`: the number of statistics of that round that `taken` has not seen yet.
        self._now = 0.0, np.zeros(0, np.float32)
        self._left = 0

    @property
    def knows(self) -> bool:
        """Whether the usual change of statistics is known; if not, call `observe` with a round."""
        return len(self._state.reports) >= LEAST

    def observe(self, layout: Layout, found: Iterable[tuple[Vector, Vector]]) -> None:
        """Compute the usual change and the median of the statistics from one round.

        The results are used only until the statistics of LEAST nodes are known. `found`: for each
        reply the statistics in the reply and those in the message, each (s,).
        """
        self._begin(layout)
        reports = list(found)
        self._left = 0
        if self.knows or not layout.size or len(reports) + len(self._state.reports) < LEAST:
            return
        centre = _middle([*self._state.reports.values(), *(report for report, _ in reports)])
        moves = [scale_of(layout).distance(*pair, centre) for pair in reports]
        self._now = max(median_of([*self._state.moves.values(), *moves]), FLOOR), centre
        self._left = len(reports)

    def taken(
        self, node: int, layout: Layout, report: Vector, sent: Vector, model: Vector | None
    ) -> Vector:
        """Return the BatchNorm statistics to use for a node, (s,).

        They are its own statistics, moved towards the median of the nodes' statistics if they are
        too far from it. `layout`: the statistics' layout. `report`: the statistics in the reply.
        `sent`: the statistics in the message. `model`: the model in the message; None if it is
        unknown. Raises `PayloadError` for statistics that are refused.
        """
        if not layout.size:
            return report
        self._begin(layout)
        state, options, scale = self._state, self._options, scale_of(layout)
        usual, centre = self._now if self._left > 0 else (state.usual, state.centre)
        self._left -= 1
        if not usual:
            self._expect_short(length(report - sent), model)
            self._used(node, report, scale.distance(report, sent, sent), scale)
            return report
        far, before = (scale.distance(each, centre, centre) for each in (report, sent))
        # If the statistics in the message were bad themselves, those in the reply may be as far
        # from the centre.
        most = max((options.statistics or math.inf) * usual, before)
        if options.statistics is not None and far > most:
            raise PayloadError(
                f"its running statistics are {far / usual:.3g} times the usual move away from the "
                f"other nodes' (screen.statistics={options.statistics:g})"
            )
        if options.clip is not None and far > max(options.clip * usual, before):
            report = scale.between(centre, report, options.clip * usual / far)
        self._used(node, report, scale.distance(report, sent, centre), scale)
        return report

    def _begin(self, layout: Layout) -> None:
        """Delete the state if it holds the statistics of another model."""
        if self._state.names != (names := list(layout.names)) or (
            len(self._state.centre) not in (0, layout.size)
        ):
            vars(self._state).update(vars(StatisticsState(names)))

    def _expect_short(self, long: float, model: Vector | None) -> None:
        """Raise `PayloadError` if the first change of statistics is much larger than the model.

        `long`: the L2 norm of the change.
        """
        if self._options.statistics is None or model is None:
            return
        self._state.origin = self._state.origin or max(length(model), 1.0)
        if not long <= REACH * self._state.origin:
            raise PayloadError("its running statistics, the first, are many times the model's")

    def _used(self, node: int, report: Vector, move: float, scale: Scale) -> None:
        state = self._state
        self.forget([node])
        state.reports[node], state.moves[node] = report.copy(), move  # copied: it may be a view
        if len(state.reports) > RECENT:
            self.forget([next(iter(state.reports))])
        state.since += 1
        if self.knows and state.since >= len(state.reports) // 2:
            state.since, state.centre = 0, _middle(list(state.reports.values()))
            state.usual = max(state.usual, median_of(state.moves.values()), FLOOR)

    def forget(self, nodes: Iterable[int]) -> None:
        """Delete the state of nodes that have left the run."""
        for node in nodes:
            self._state.reports.pop(node, None)
            self._state.moves.pop(node, None)


def _middle(reports: list[Vector]) -> Vector:
    """Return the median of each entry of the nodes' statistics; of two middle values the lower."""
    middle = (len(reports) - 1) // 2
    found: Vector = np.partition(np.stack(reports), middle, axis=0)[middle].copy()
    return found


class UpdateFilters(NamedTuple):
    """A server's three filters: of float32 vectors, of native tensors, and of statistics."""

    vectors: UpdateFilter
    beside: UpdateFilter
    statistics: StatisticsScreen

    def forget(self, nodes: Collection[int]) -> None:
        """Delete the state of nodes that have left the run."""
        for screen in self:
            screen.forget(nodes)


def screened(
    replies: Sequence[Message],
    asked: Sequence[SentMessage | None],
    lengths: Mapping[str, Lengths],
    screens: UpdateFilters,
    weight: str,
) -> dict[int, str]:
    """Scale down unusual replies in place; return, by the reply's `id`, why others are refused.

    `asked`: the message of each reply. `lengths`: the updates' `Lengths`, by the id of the message
    that the reply belongs to. `weight`: the name of the metric with the node's weight.
    """
    trained = [
        (reply, sent, lengths[reply.metadata.reply_to_message_id])
        for reply, sent in zip(replies, asked, strict=True)
        if sent and not reply.has_error() and reply.metadata.reply_to_message_id in lengths
    ]
    screen = screens.vectors
    if not screen.knows:
        screen.observe(long.vector for *_, long in trained)
        screens.beside.observe(long.beside for *_, long in trained)
    for layout in dict.fromkeys(statistics_of(sent.form)[0] for _, sent, _ in trained):
        pairs = [
            (long.statistics, long.sent)
            for _, sent, long in trained
            if statistics_of(sent.form)[0] == layout
        ]
        screens.statistics.observe(layout, pairs)
    bad, good = dict[int, str](), []
    for reply, sent, long in trained:
        start = sent.start
        try:
            layout, reported = statistics_of(sent.form)[0], long.statistics
            statistics = screens.statistics.taken(
                sent.node, layout, reported, long.sent, start.vector
            )
            if start.own or sent.natives:
                screens.beside.clip_factor(sent.node, long.beside, None)
            share = screen.clip_factor(sent.node, long.vector, start.vector)
        except PayloadError as error:
            bad[id(reply)] = str(error)
            continue
        if share < 1 or statistics is not reported:
            _shorten(reply, sent, share, statistics)
        good.append((reply, sent))
    _weigh(good, screen, weight)
    evaluated = [
        (reply, sent)
        for reply, sent in zip(replies, asked, strict=True)
        if sent and sent.kind.startswith("evaluate") and not reply.has_error()
    ]
    _weigh(evaluated, screen, weight, evaluated=True)
    return bad


def _shorten(reply: Message, sent: SentMessage, share: float, statistics: Vector) -> None:
    """Multiply a reply's update by `share`, and replace its BatchNorm statistics by `statistics`.

    The update is the difference between the float tensors in the reply and those in the message.
    """
    name, record = records(reply.content, ArrayRecord)[0]
    form = sent.form
    flat = FLAT in record
    if flat:
        model = Model(to_vector(record))
    else:
        form = form_of_updates(layout_of(record), form.patterns)
        model = form.model(record)
    vector = model.vector if share == 1 else _between(sent.start.vector, model.vector, share)
    model = with_statistics(form, Model(vector, model.own), statistics)
    shorter = with_natives(flat_record(model.vector), natives_of(record)) if flat else None
    reply.content[name] = form.arrays(model) if shorter is None else shorter


def _between(start: Vector, end: Vector, share: float) -> Vector:
    return np.asarray(start + np.float32(share) * (end - start), dtype=np.float32)


def _weigh(
    replies: Iterable[tuple[Message, SentMessage]],
    screen: UpdateFilter,
    key: str,
    *,
    evaluated: bool = False,
) -> None:
    """Limit the weights in replies to a multiple of the usual weight, and log each change."""
    found = {
        sent.node: metrics
        for reply, sent in replies
        for _, metrics in records(reply.content, MetricRecord)
        if key in metrics
    }
    said = {node: cast(float, metrics[key]) for node, metrics in found.items()}
    for node, weight in screen.cap_weights(said, evaluated=evaluated).items():
        if weight != said[node]:
            found[node][key] = int(weight) if isinstance(said[node], int) else weight
            if not screen.equal:
                log.warning("node %d: its %s of %g counts as %g", node, key, said[node], weight)
