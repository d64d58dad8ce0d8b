"""An asynchronous parameter server: it applies each update on arrival, scaled by staleness."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from logging import getLogger
from typing import NamedTuple, cast

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from edgewire.compression.base import Indices, PayloadError, Vector, is_finite, quiet
from edgewire.compression.decoder import decode_update
from edgewire.compression.flower import to_arrays
from edgewire.compression.flower.headers import EXAMPLES, LOSS, DownlinkHeader, TrainConfig, number
from edgewire.compression.flower.node_names import called
from edgewire.compression.flower.replica import MODEL
from edgewire.compression.flower.server.delta_sync import ModelUpdate
from edgewire.compression.flower.server.inbox import ReceivedUpdate
from edgewire.compression.flower.server.session import forget_nodes
from edgewire.compression.flower.timed_grid import FIRST, LEAST, SlowestReply
from edgewire.compression.flower.traffic import in_one_line
from edgewire.compression.validation import FOREVER
from edgewire.conf.check import NO_CODECS, Codecs
from edgewire.conf.option_group import OptionGroup, bounded
from edgewire.strategy.aggregation import SparseMean
from edgewire.strategy.base import (
    FLOWER,
    STEP_MESSAGE,
    ParameterServer,
    Started,
)
from edgewire.strategy.collector import Stragglers
from edgewire.strategy.node_scheduler import BackoffScheduler
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.membership import REPEATED
from edgewire.strategy.server import ModelState, Server
from edgewire.strategy.staleness import Counted, Ignored, Seen, Staleness

log = getLogger("edgewire")
IGNORED = Ignored()


class Sent(NamedTuple):
    """The server's data about a message that a node has not replied to yet."""

    node: int
    number: int  # the count of messages to the node, from 1
    when: float  # when it was sent, by the grid's `now`
    version: int  # the version of the model in the message
    seen: Seen | None  # the staleness policy's data about the time of sending
    model: NDArray[np.float32] | None  # the model that the node got; None without `mix`
    statistics: NDArray[np.float32]  # BatchNorm's statistics of the server's model at that time


@dataclass
class PushesState(ModelState):
    """The state of an asynchronous run, as a checkpoint holds it.

    A push is a node's reply, used or not. `done`: the number of pushes so far. `flight`: by message
    id, the messages without a reply yet, in the order of sending. `losses`, `stale`: (loss, weight)
    and staleness of each update since the last call of `evaluate_fn`. `next_look`: the time at
    which to look for new nodes. `buffered`: the number of updates in `mean` and `reported`. `now`:
    the time of this state. Times are values of the grid's `now`.
    """

    done: int = 0
    counted: Counted = field(default_factory=Counted)
    flight: dict[str, Sent] = field(default_factory=dict)
    late: Stragglers = field(default_factory=Stragglers)
    scheduler: BackoffScheduler = field(default_factory=BackoffScheduler)
    losses: list[tuple[float, float]] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    next_look: float = -math.inf
    buffered: int = 0
    mean: SparseMean = field(default_factory=SparseMean)
    now: float = 0.0


@dataclass(frozen=True)
class PushOptions(OptionGroup):
    """Says what an asynchronous server does with a push, a node's reply, and when the run ends.

    The run ends after `pushes` pushes, used or not. The server calls `evaluate_fn` after every
    `record_every` pushes. `mix`: True for FedAsync (Xie et al. 2019, Algorithm 1): x = (1 - a) x +
    a y, where x is the server's model, y is the node's model, and a is `server_lr` times the
    staleness factor. `proximal_mu`: the paper's rho. Each node adds rho / 2 |y - x_sent|^2 to its
    loss, where x_sent is the model that the node received. `buffer`: the number of updates whose
    mean the server applies in one step (K in FedBuff, Nguyen et al. 2022, Algorithm 1). If it is
    above 1, staleness counts steps and not updates. Updates that are still in the buffer at the end
    are not used. `sender_exponent`: an entry of the buffer's mean is multiplied by (buffer /
    updates that hold it)^`sender_exponent`, as `SparseMean` says. `most`: the server pauses a node
    after it has sent this node more than `most` times the median number of messages. So a node that
    replies very fast does not train the model alone. None: no pauses.
    """

    pushes: int = bounded(20_000, at_least=1)
    mix: bool = False
    proximal_mu: float = bounded(0.0, at_least=0)
    buffer: int = bounded(1, at_least=1)
    sender_exponent: float = bounded(0.0, at_least=0, at_most=1)
    most: float | None = bounded(None, at_least=1)
    record_every: int = bounded(1, at_least=1)


PUSHING = PushOptions()


class Asynchronous(ParameterServer):
    """Send each node the newest model and apply its update on arrival, without waiting for others.

    The step is x = x - rate * factor * update; `staleness` gives the factor. This covers ASGD,
    Comp-ASGD and AdaComp (Hardy, Le Merrer, Sericola 2017, Algorithms 1 and 2). An update is a
    gradient, applied at the run's learning rate, or a delta (`update="delta"`), applied at
    `server_lr`. A delta is the model before local training minus the model after it. With a
    downlink codec in `codecs`, a node gets the change since the version of the model that the node
    has confirmed. The next change also corrects the error of this encoding.

    If a node does not reply within the timeout, the server sends it a new message. In real time the
    timeout is an hour, unless the run has another.
    """

    unit = "PUSH"
    knows_context = True
    State = PushesState
    state: PushesState

    def __init__(
        self,
        *,
        pushing: PushOptions = PUSHING,
        staleness: Staleness = IGNORED,
        update: str = "gradient",
        server_lr: float = 1.0,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        super().__init__(update, server_lr, codecs)
        if not isinstance(staleness, Staleness):
            raise ValueError(
                "staleness is chosen by strategy/staleness=none, global, polynomial, per_parameter"
            )
        self.pushing, self.staleness = pushing, staleness
        self.record_every = pushing.record_every

    @property
    def done(self) -> int:
        """The number of pushes so far."""
        return self.state.done

    def abandon(self, back: Collection[int] = ()) -> None:
        """Delete the messages without a reply; treat all nodes as new, so that they get the model.

        `back`: the nodes that resume from the same checkpoint as the server.
        """
        state = self.state
        state.flight.clear()
        state.late.messages.clear()
        state.scheduler.resting.clear()
        state.scheduler.known.clear()
        state.next_look = -math.inf
        state.session.go_back(back)

    def summary(self) -> None:
        """Log the kind of update and the staleness policy."""
        policy = type(self.staleness).__name__
        FLOWER.info("asynchronous: a %s a push, staleness %s", self.update, policy)

    def _train(self, run: Started) -> None:
        """Run until `pushes` replies have arrived."""
        grid = self._ordered(run.grid)
        forever = FIRST if grid.virtual_seconds is None else math.inf
        timeout = run.timeout if run.timeout < FOREVER else forever
        pushes = Pushes(self, grid, run, timeout)

        def record(done: int) -> None:
            self._evaluate(run, done, self.pushing.pushes, pushes.arrays)

        if not run.goes_on:
            record(0)
        while self.state.done < self.pushing.pushes:
            if not pushes.advance(record):
                done = self.state.done
                log.warning("no node is left after %d of %d pushes", done, self.pushing.pushes)
                break
            self.on_state_complete()
        run.result.arrays = to_arrays(pushes.model, pushes.layout, pushes.reported.natives)


class Pushes(Server):
    """Runs `Asynchronous` reply by reply; `state` holds all that a checkpoint needs.

    The run's `train_config` holds the learning rate, "lr", which may change during the run.
    """

    def __init__(
        self, strategy: Asynchronous, grid: OrderedGrid, run: Started, timeout: float
    ) -> None:
        self._strategy, self._timeout, self._config = strategy, timeout, run.train_config
        self._state = state = strategy.state
        self._slowest, self._named = SlowestReply(), dict[str, int]()
        self._here: Collection[int] | None = None  # the nodes that take part, if known
        # The saved times are those of another process's clock.
        if state.replica and grid.virtual_seconds is None:
            state.next_look += grid.now - state.now
            for message_id, sent in state.flight.items():
                later = sent.when + grid.now - state.now
                state.flight[message_id] = sent._replace(when=later)
        super().__init__(strategy, grid, run.arrays, state, [LOSS])
        if not state.mean.size:
            state.mean = SparseMean(self.reported.trained, strategy.pushing.sender_exponent)
        self._staleness = strategy.staleness
        self._staleness.start(self.layout.size, state.counted)

    @property
    def _lr(self) -> float:
        return cast(float, self._config["lr"])

    def advance(self, record: Callable[[int], None]) -> bool:
        """Process the next replies, and send a new message to each node that has replied.

        `record(done)` is called after every `record_every` pushes (replies). Returns False if no
        node is available and none will appear.
        """
        state, strategy, options = self._state, self._strategy, self._strategy.pushing
        self._greet()
        for node in state.scheduler.ready(state.done, idle=not state.flight):
            failed = strategy.failures.failures_of(node)
            self._send_again(node, look=failed >= REPEATED)
        replies = self._grid.pull_before(state.flight, self._deadline())
        # On a virtual clock it may be known that no reply will arrive, and no node appear.
        ended = self._deadline() == math.inf and self._grid.virtual_seconds is not None
        if not replies and ended:
            if state.done % strategy.record_every:
                self._sum_up()
                record(state.done)
            return False
        for place, reply in enumerate(replies, 1):
            sent = state.flight.pop(reply.metadata.reply_to_message_id)
            if state.late.messages:  # only then does `Stragglers` need the message's number
                state.late.answered(sent.node, sent.number)
            state.done += 1
            self._slowest.took(self._grid.now - sent.when)
            self._receive(sent, reply)
            last = state.done == options.pushes
            if state.done % strategy.record_every == 0 or last:
                self._sum_up()
                record(state.done)
            if last:
                for more in replies[place:]:
                    self._grid.discard(more)
                break
            failed = strategy.failures.failures_of(sent.node)
            if not state.scheduler.should_wait(sent.node, state.done, failed, options.most):
                self._send_again(sent.node)
        state.now = self._grid.now
        return True

    def _greet(self) -> None:
        """Send the model to new nodes, and again to nodes that did not reply in time."""
        state, grid = self._state, self._grid
        while state.flight:  # the first message is the oldest
            message_id, sent = next(iter(state.flight.items()))
            if sent.when + self._timeout > grid.now:
                break
            del state.flight[message_id]
            state.late.add(grid, message_id, sent.node, sent.number)
            self._left_out(sent.node, f"no reply in time (timeout={self._timeout:g})")
            if sent.node in grid.get_node_ids():
                self._send(sent.node)
            else:
                state.scheduler.known.discard(sent.node)
                state.next_look = min(state.next_look, grid.next_look)
        if grid.now >= state.next_look:
            here = grid.get_node_ids()
            if gone := self.session.gone(lambda: here):
                left = state.late, state.screens, state.failures, state.scheduler, state.flight
                forget_nodes(gone, *left)
            self._here = here if grid.next_change is None else None
            for node in state.scheduler.add(here):
                self._send(node)
            state.next_look = grid.next_look
            if grid.virtual_seconds is None:
                self._name_silent()

    def _name_silent(self) -> None:
        """Log the nodes that have not replied for long, once for each message."""
        least, now = max(2 * self._slowest.seconds, LEAST), self._grid.now
        flight = self._state.flight.items()
        silent = {key: sent.node for key, sent in flight if now - sent.when >= least}
        if new := [node for key, node in silent.items() if key not in self._named]:
            nodes = in_one_line(", ".join(map(called, new)))
            text = "the server still waits, at most %.0f s for a reply, for %s"
            log.warning(text, self._timeout, nodes)
        self._named = silent

    def _left_out(self, node: int, reason: str) -> None:
        """Count a message to which the node has sent no usable reply.

        Raises `PayloadError` if each node has sent no usable reply to many consecutive messages
        (`FailurePolicy.failed`).
        """
        self._strategy.failures.leave_out(node, reason)
        known = self._state.scheduler.known
        self._strategy.failures.failed(node, known, "of every node", reason)

    def _deadline(self) -> float:
        """Return the time until which to wait for a reply."""
        oldest = next(iter(self._state.flight.values()), None)
        return min(
            self._state.next_look, math.inf if oldest is None else oldest.when + self._timeout
        )

    def _send_again(self, node: int, *, look: bool = False) -> None:
        """Send a node the newest model, unless it has given its place to another node.

        `look`: search for the nodes that take part; False: those of the last search.
        """
        here = self._grid.get_node_ids() if look else self._here
        if here is None or node in here:
            self._send(node)
        else:  # it is a new node when it takes part again
            self._state.scheduler.known.discard(node)

    def _send(self, node: int) -> None:
        """Send a node the newest model."""
        state, strategy = self._state, self._strategy
        count = state.scheduler.next(node)
        deltas, known = self.deltas, len(state.scheduler.known)
        self.offer(count, crowded=deltas is not None and deltas.crowded(known))
        header = DownlinkHeader(count, workers=strategy.pushing.buffer)
        orders = TrainConfig(self._lr, count, float(strategy.pushing.proximal_mu))
        ((message, model_update),) = self.session.messages(
            [node], STEP_MESSAGE, orders.config(), header, self.reported.natives
        )
        (message_id,) = self._grid.push_messages([message], self._timeout)
        now, version, seen = self._grid.now, self.replica.version, self._staleness.seen()
        model = self._received(model_update) if strategy.pushing.mix else None
        statistics = self.reported.of(self.model).copy()
        state.flight[message_id] = Sent(node, count, now, version, seen, model, statistics)

    def _received(self, model_update: ModelUpdate) -> Vector:
        """Return the model, float32 (n,), that a node has after it has decoded `model_update`."""
        if model_update.received is not None:
            return model_update.received.vector
        return decode_update(model_update.arrays[MODEL].data, self.layout).dense()

    @quiet
    def _receive(self, sent: Sent, reply: Message) -> None:
        """Apply the update in a reply, or count the reply as a failure and log the reason."""
        try:
            message, start = sent.number, sent.statistics
            found = self.inbox.read(sent.node, message, reply, start, self.reported.natives)
            self._apply(sent, found)
        except PayloadError as error:
            self._left_out(sent.node, str(error))
            return
        self._strategy.failures.succeeded(sent.node)
        self.session.acks.applied([sent.node])
        self._state.traffic.client_updates += 1
        metrics = found.metrics
        self._state.losses.append((number(metrics, LOSS), number(metrics, EXAMPLES)))

    def _apply(self, sent: Sent, found: ReceivedUpdate) -> None:
        """Take a step with a node's update, or add the update to the buffer.

        Raises `PayloadError` if a value of the model would exceed float32; then the model does not
        change.
        """
        state, strategy = self._state, self._strategy
        buffer = strategy.pushing.buffer
        stale = self.replica.version - sent.version
        rate = self._lr if strategy.rate is None else strategy.rate
        accepted = self.inbox.accept(sent.node, found, self.model, rate)
        indices, values, natives = accepted.indices, accepted.values, accepted.natives
        # FedAsync, Algorithm 1: x_t = (1 - a) x_(t-1) + a x_new = x_(t-1) - a (x_(t-1) - x_new).
        if sent.model is not None:
            indices, values = None, self._towards(sent.model, indices, values)
        touched = None if indices is None else found.every
        # AdaComp has one factor for each entry; the last factors are those of BatchNorm's
        # statistics.
        factor = self._staleness.factor(stale, sent.seen, touched)
        share: Vector | np.float32 = factor
        every = factor
        if isinstance(factor, np.ndarray):
            factor, share = factor[: len(values)], factor[len(values) :]
        values = values * factor
        self._expect_finite(indices, values, rate)
        state.stale.append(stale)
        of_rate = 1 if strategy.update == "gradient" else rate
        mean = float(np.mean(every)) if np.size(every) else 1.0
        natives_share = of_rate * mean if natives else None
        self.reported.add(
            accepted.statistics, natives, share * of_rate, natives_share=natives_share
        )
        if buffer > 1:  # FedBuff, Algorithm 1: no step until the buffer holds K updates
            state.mean.add(indices, values)
            state.buffered += 1
            if state.buffered < buffer:
                return
            (indices, values), state.buffered = state.mean.take(), 0
        indices, values = self.reported.joined(indices, values, self.model)
        if buffer > 1:
            self._expect_finite(indices, values, rate)
        self.replica.apply(indices, values, rate)
        self.reported.take()
        self._staleness.applied(indices)
        self.steps.add(b"", rate)

    def _expect_finite(self, indices: Indices | None, values: Vector, rate: float) -> None:
        moved = self.model[slice(len(values)) if indices is None else indices]
        after = np.float32(rate) * values
        if not is_finite(np.subtract(moved, after, out=after)):
            raise PayloadError("its update is beyond float32")

    def _towards(self, model: Vector, indices: Indices | None, values: Vector) -> Vector:
        """Return the server's model minus a node's new model, without BatchNorm's statistics.

        `model`: the model that the node received. The node's new model is `model` minus its update,
        which has `values` at `indices` (None: at all entries).
        """
        size = self.reported.trained
        trained = model[:size].copy()
        trained[slice(None) if indices is None else indices] -= values
        return cast(Vector, self.model[:size] - trained)

    def _sum_up(self) -> None:
        """Set `train_metrics` to the mean loss and staleness since the last call of this method."""
        state = self._state
        state.train_metrics = None
        if state.losses:
            total = sum(weight for _, weight in state.losses)
            loss = sum(loss * weight for loss, weight in state.losses) / total
            staleness = sum(state.stale) / len(state.stale)
            state.train_metrics = {LOSS: loss, "staleness": staleness}
        state.losses, state.stale = [], []
