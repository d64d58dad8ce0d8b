"""Screens updates before a strategy sees them: by their length, and by what weighs them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from ..stages import DIVERGED, PayloadError
from .arrays import FLAT, Vector, flat_record, layout_of, records, to_vector
from .form import Form, Model, form_of_updates
from .replies import Asked

log = getLogger("edgewire")
LEAST = 3  # nodes whose lengths say what is usual
REACH = 10.0  # times the model's own length: what an update may move it while nobody knows that


@dataclass(frozen=True)
class Screening:
    """What is refused, and what is made smaller; None: nothing is.

    `refuse`, `clip`: an update longer than so many times the usual length is left out, or shortened
    to it; `weight`: so many times the usual weight is the most that a node has. Usual is the median
    of what each node sent last, of lengths the largest there was: late in a run updates are short,
    and now and then a mini-batch gives one as at its beginning. `equal`: all nodes weigh the same,
    whatever they say. Raises `ValueError` for factors below 1.
    """

    refuse: float | None = 100.0
    clip: float | None = None
    weight: float | None = 10.0
    equal: bool = False

    def __post_init__(self) -> None:
        factors = {"refuse": self.refuse, "clip": self.clip, "weight": self.weight}
        for name, factor in factors.items():
            if factor is not None and not 1 <= factor < math.inf:
                raise ValueError(f"screen.{name} must be a number of at least 1, not {factor!r}")


@dataclass
class ScreenState:
    """By node: the length of its last update that was used, and its last weight; the usual length
    so far (0: not known), and how many were used since it was worked out. `origin`: the length of
    the model that the first update was of.
    """

    lengths: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    usual: float = 0.0
    since: int = 0
    origin: float = 0.0


def length(*parts: Vector) -> float:
    """Return the Euclidean length of vectors end to end; infinity if float32 cannot hold it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(sum(float(np.dot(part, part)) for part in parts))


class Lengths(NamedTuple):
    """How far an update has moved a model: its vector, and its tensors of their own type."""

    vector: float
    beside: float


def lengths(form: Form, model: Model, asked: Form, start: Model) -> Lengths | None:
    """Return how far a model is from the one that was sent; None if it has other tensors.

    Raises `PayloadError` for counts that their own type cannot hold.
    """
    theirs, ours = form.whole, asked.whole
    if (theirs.names, theirs.shapes) != (ours.names, ours.shapes):
        return None
    if theirs != ours or form.beside != asked.beside:
        model = asked.model(form.arrays(model))
    own = zip(model.own, start.own, strict=True)
    beside = math.hypot(*(_distance(new.array, old.array) for new, old in own))
    return Lengths(length(model.vector - start.vector), beside)


def _distance(new: NDArray[Any], old: NDArray[Any]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.where(new == old, 0.0, new.astype(np.float64) - old)
        return float(np.linalg.norm(moved))


class Screen:
    """Knows what is usual, from the updates that were used; one a node, so that none is loud.

    `floor`: what is usual at the least.
    """

    def __init__(
        self,
        options: Screening | None = None,
        state: ScreenState | None = None,
        floor: float = 0.0,
    ) -> None:
        self._options = Screening() if options is None else options
        self._floor = floor
        self._state = ScreenState() if state is None else state
        self._now = 0.0  # the usual length in a round of nodes not heard before

    @property
    def knows(self) -> bool:
        """Whether it is known what is usual: else look at all of a round's before the first."""
        return len(self._state.lengths) >= LEAST

    @property
    def equal(self) -> bool:
        """Whether all nodes weigh the same."""
        return self._options.equal

    def look(self, lengths: Iterable[float]) -> None:
        """Take the lengths of a round's updates, while too few were used to know what is usual."""
        found = [*self._state.lengths.values(), *lengths]
        few = len(found) < LEAST or self.knows
        self._now = 0.0 if few else max(_median(found), self._floor)

    def share(self, node: int, long: float, model: Vector | None, rate: float = 1.0) -> float:
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
            state.usual = max(state.usual, _median(state.lengths.values()), self._floor)

    def weigh(self, weights: dict[int, float]) -> dict[int, float]:
        """Return nodes' weights, none above its limit; they are what is usual from now on."""
        if self._options.equal:
            return dict.fromkeys(weights, 1.0)
        self._state.weights |= weights
        factor, known = self._options.weight, self._state.weights
        if factor is None or len(known) < LEAST:
            return weights
        limit = factor * _median(known.values())
        return {node: min(weight, limit) for node, weight in weights.items()}

    def forget(self, nodes: Iterable[int]) -> None:
        """Forget nodes that are gone."""
        for node in nodes:
            self._state.lengths.pop(node, None)
            self._state.weights.pop(node, None)


def _median(values: Iterable[float]) -> float:
    """Return the median, the lower one of two."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if found else 0.0


def screened(
    replies: Sequence[Message],
    asked: Sequence[Asked | None],
    lengths: Mapping[str, Lengths],
    screen: Screen,
    beside: Screen,
    weight: str,
) -> dict[int, str]:
    """Return which replies are refused, by `id`, and why; the others are made smaller where needed.

    `lengths`: of updates, by the id of the message that is replied to; `beside`: of what travels in
    its own type; `weight`: the metric.
    """
    trained = [
        (reply, sent, lengths[reply.metadata.reply_to_message_id])
        for reply, sent in zip(replies, asked, strict=True)
        if sent and not reply.has_error() and reply.metadata.reply_to_message_id in lengths
    ]
    if not screen.knows:
        screen.look(long.vector for *_, long in trained)
        beside.look(long.beside for *_, long in trained)
    bad, good = dict[int, str](), []
    for reply, sent, long in trained:
        try:
            if sent.start.own:
                beside.share(sent.node, long.beside, None)
            share = screen.share(sent.node, long.vector, sent.start.vector)
        except PayloadError as error:
            bad[id(reply)] = str(error)
            continue
        if share < 1:
            _shorten(reply, sent, share)
        good.append((reply, sent))
    _weigh(good, screen, weight)
    return bad


def _shorten(reply: Message, sent: Asked, share: float) -> None:
    """Leave a share of a reply's update: of what its floats have changed since they were sent."""
    name, record = records(reply.content, ArrayRecord)[0]
    if FLAT in record:
        reply.content[name] = flat_record(_between(sent.start.vector, to_vector(record), share))
        return
    form = form_of_updates(layout_of(record), sent.form.patterns)
    model = form.model(record)
    vector = _between(sent.start.vector, model.vector, share)
    reply.content[name] = form.arrays(Model(vector, model.own))


def _between(start: Vector, end: Vector, share: float) -> Vector:
    return np.asarray(start + np.float32(share) * (end - start), dtype=np.float32)


def _weigh(replies: Iterable[tuple[Message, Asked]], screen: Screen, key: str) -> None:
    """Lower weights that are far above what is usual, and say so."""
    found = {
        sent.node: metrics
        for reply, sent in replies
        for _, metrics in records(reply.content, MetricRecord)
        if key in metrics
    }
    said = {node: cast(float, metrics[key]) for node, metrics in found.items()}
    for node, weight in screen.weigh(said).items():
        if weight != said[node]:
            found[node][key] = int(weight) if isinstance(said[node], int) else weight
            if not screen.equal:
                log.warning("node %d: its %s of %g counts as %g", node, key, said[node], weight)
