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
from ...batchnorm import separate
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
from .norms import LEAST, REACH, median_of, norm_of
from .statistics_screen import StatisticsScreen

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


class UpdateNorms(NamedTuple):
    """The L2 norms of a node's update, and BatchNorm's statistics before and after it."""

    vector: float  # L2 norm of the change of the float32 vector, without statistics
    beside: float  # L2 norm of the change of native tensors, without statistics
    statistics: Vector  # the statistics in the reply, float32 (s,)
    sent: Vector  # the statistics in the message, float32 (s,)


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
    beside = math.hypot(*(_distance(new.array, old.array) for new, old in own))
    moved = model.vector - start.vector
    if inside := statistics_of(asked)[1]:
        moved = separate(asked.layout, inside).gather(moved)
    statistics = gathered_statistics(asked, model), gathered_statistics(asked, start)
    return UpdateNorms(norm_of(moved), beside, *statistics)


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
    norms: Mapping[str, UpdateNorms],
    screens: UpdateFilters,
    weight: str,
) -> dict[int, str]:
    """Scale down unusual replies in place; return, by the reply's `id`, why others are refused.

    `asked`: the message of each reply. `norms`: the updates' `UpdateNorms`, by the id of the
    message that the reply belongs to. `weight`: the name of the metric with the node's weight.
    """
    trained = [
        (reply, sent, norms[reply.metadata.reply_to_message_id])
        for reply, sent in zip(replies, asked, strict=True)
        if sent and not reply.has_error() and reply.metadata.reply_to_message_id in norms
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
