"""Screens updates before a strategy sees them: by their length, and by what weighs them."""

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
from .inbox import Asked

log = getLogger("edgewire")
LEAST = 3  # nodes whose lengths say what is usual
FLOOR = 0.2  # standard deviations: the usual move of statistics at the least
RECENT = 15  # nodes whose last reports say where statistics are
REACH = 10.0  # times the model's own length: what an update may move it while nobody knows that


@dataclass(frozen=True)
class Screening:
    """What is refused, and what is made smaller; None: nothing is.

    `refuse`, `clip`: an update longer than so many times the usual length is left out, or shortened
    to it; `weight`: so many times the usual weight is the most that a node has. Usual is the median
    of what each node sent last, of lengths the largest there was: late in a run updates are short,
    and now and then a mini-batch gives one as at its beginning. `statistics`: BatchNorm's running
    statistics that are so many times as far from the other nodes' as they usually move are refused
    (`StatisticsScreen`; `clip` shortens them likewise). `equal`: all nodes weigh the same, whatever
    they say. Raises `ValueError` for factors below 1.
    """

    refuse: float | None = 100.0
    statistics: float | None = 5.0
    clip: float | None = None
    weight: float | None = 10.0
    equal: bool = False

    def __post_init__(self) -> None:
        for name in ("refuse", "statistics", "clip", "weight"):
            factor = getattr(self, name)
            if factor is not None and not 1 <= factor < math.inf:
                raise ValueError(f"screen.{name} must be a number of at least 1, not {factor!r}")


@dataclass
class UpdateFilterState:
    """By node: the length of its last update that was used, its last weight, and that of its last
    evaluation; the usual length so far (0: not known), and how many were used since it was worked
    out. `origin`: the length of the model that the first update was of.
    """

    lengths: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    since: int = 0
    origin: float = 0.0


def length(*parts: Vector) -> float:
    """Return the Euclidean length of vectors end to end; infinity if float32 cannot hold it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(sum(float(np.dot(part, part)) for part in parts))


class Lengths(NamedTuple):
    """How far an update has moved a model: its vector without statistics, and its tensors of their
    own type; its statistics, and those that were sent, float32 (s,).
    """

    vector: float
    beside: float
    statistics: Vector
    sent: Vector


def lengths(form: TensorSplit, model: Model, asked: TensorSplit, start: Model) -> Lengths | None:
    """Return how far a model is from the one that was sent; None if it has other tensors.

    Raises `PayloadError` for counts that their own type cannot hold.
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
    """Knows what is usual, from the updates that were used; one a node, so that none is loud.

    `floor`: what is usual at the least.
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
        self._now = 0.0  # the usual length in a round of nodes not heard before

    @property
    def knows(self) -> bool:
        """Whether it is known what is usual: else look at all of a round's before the first."""
        return len(self._state.lengths) >= LEAST

    @property
    def equal(self) -> bool:
        """Whether all nodes weigh the same."""
        return self._options.equal

    def observe(self, lengths: Iterable[float]) -> None:
        """Take the lengths of a round's updates, while too few were used to know what is usual."""
        found = [*self._state.lengths.values(), *lengths]
        few = len(found) < LEAST or self.knows
        self._now = 0.0 if few else max(median_of(found), self._floor)

    def clip_factor(self, node: int, long: float, model: Vector | None, rate: float = 1.0) -> float:
        """Return the factor by which a node's update is to be shortened, at most 1: it is used.

        `long`: its length, and `rate`: by which it would change the `model` (None: who knows).
        Raises `PayloadError` for one that is refused.
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
        """Return the first model's length, at least 1: what nobody knows cannot make it grow."""
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
        """Return nodes' weights, none above its limit; they are what is usual from now on.

        `evaluated`: of evaluations, of which others are usual than of updates.
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
        """Forget nodes that are gone."""
        for node in nodes:
            self._state.lengths.pop(node, None)
            self._state.weights.pop(node, None)
            self._state.evaluations.pop(node, None)


def median_of(values: Iterable[float]) -> float:
    """Return the median, the lower one of two."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if found else 0.0


@dataclass
class StatisticsState:
    """By node, those that were used last at the end: the last statistics (s,), and how far they had
    moved. `usual`: the usual move so far (0: not known), `centre`: where statistics are; `since`:
    how many were used since both were worked out. `names`: of the statistics; `origin`: the length
    of the model that the first were of.
    """

    names: list[str] = field(default_factory=list)
    reports: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    moves: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    centre: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    since: int = 0
    origin: float = 0.0


class StatisticsScreen:
    """Knows where statistics are: at the median of what the nodes have reported last.

    How far a node may be from there is measured by the usual move, the median over nodes of how far
    one message's training moves what it was sent: the largest such median so far, as of updates.
    The server's own statistics tell neither: at first they are 0 and 1, whatever the model.
    """

    def __init__(
        self, options: Screening | None = None, state: StatisticsState | None = None
    ) -> None:
        self._options = Screening() if options is None else options
        self._state = StatisticsState() if state is None else state
        self._now = 0.0, np.zeros(0, np.float32)  # in a round of nodes not heard before
        self._left = 0  # of that round's reports

    @property
    def knows(self) -> bool:
        """Whether it is known where statistics are: else look at all of a round's first."""
        return len(self._state.reports) >= LEAST

    def observe(self, layout: Layout, found: Iterable[tuple[Vector, Vector]]) -> None:
        """Take a round's statistics, with those that were sent, while too few are known."""
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
        """Return a node's statistics as they are to be used, (s,): as it reports them, or nearer.

        `layout`: of the statistics; `sent`: what the node began with; `model`: they are part of
        (None: who knows). Raises `PayloadError` for those that are refused.
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
        # Who was sent statistics that others have led astray may come back from there.
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
        """Begin anew with another model's."""
        if self._state.names != (names := list(layout.names)) or (
            len(self._state.centre) not in (0, layout.size)
        ):
            vars(self._state).update(vars(StatisticsState(names)))

    def _expect_short(self, long: float, model: Vector | None) -> None:
        """Refuse what nobody knows and is beyond measure."""
        if self._options.statistics is None or model is None:
            return
        self._state.origin = self._state.origin or max(length(model), 1.0)
        if not long <= REACH * self._state.origin:
            raise PayloadError("its running statistics, the first, are many times the model's")

    def _used(self, node: int, report: Vector, move: float, scale: Scale) -> None:
        state = self._state
        self.forget([node])
        state.reports[node], state.moves[node] = report.copy(), move  # it may be part of an update
        if len(state.reports) > RECENT:
            self.forget([next(iter(state.reports))])
        state.since += 1
        if self.knows and state.since >= len(state.reports) // 2:
            state.since, state.centre = 0, _middle(list(state.reports.values()))
            state.usual = max(state.usual, median_of(state.moves.values()), FLOOR)

    def forget(self, nodes: Iterable[int]) -> None:
        """Forget nodes that are gone."""
        for node in nodes:
            self._state.reports.pop(node, None)
            self._state.moves.pop(node, None)


def _middle(reports: list[Vector]) -> Vector:
    """Return the median of each entry, the lower one of two."""
    middle = (len(reports) - 1) // 2
    found: Vector = np.partition(np.stack(reports), middle, axis=0)[middle].copy()
    return found


class Screens(NamedTuple):
    """Of what a link screens: vectors, what travels in its own type, statistics."""

    vectors: UpdateFilter
    beside: UpdateFilter
    statistics: StatisticsScreen

    def forget(self, nodes: Collection[int]) -> None:
        """Forget nodes that are gone."""
        for screen in self:
            screen.forget(nodes)


def screened(
    replies: Sequence[Message],
    asked: Sequence[Asked | None],
    lengths: Mapping[str, Lengths],
    screens: Screens,
    weight: str,
) -> dict[int, str]:
    """Return which replies are refused, by `id`, and why; the others are made smaller where needed.

    `lengths`: of updates, by the id of the message that is replied to; `weight`: the metric.
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


def _shorten(reply: Message, sent: Asked, share: float, statistics: Vector) -> None:
    """Leave a share of a reply's update: of what its floats have changed since they were sent.

    `statistics`: its running statistics, already shortened.
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
    replies: Iterable[tuple[Message, Asked]],
    screen: UpdateFilter,
    key: str,
    *,
    evaluated: bool = False,
) -> None:
    """Lower weights that are far above what is usual, and say so."""
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
