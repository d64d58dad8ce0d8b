"""The asynchronous parameter server: each update is applied as it arrives, by its staleness."""

from __future__ import annotations

import math
from collections import Counter
from logging import getLogger
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from compression import Codec, Layout, PayloadError, Update, decode_update
from compression.flower import flat_record, to_arrays
from compression.flower.dialogue import Dialogue, number
from compression.flower.differences import Differences
from compression.flower.form import Model, form_of_updates
from compression.flower.ledger import Parcel
from compression.flower.notes import ToNode
from compression.flower.replica import MODEL, Replica
from compression.flower.steps import Steps
from compression.flower.traffic import flower_bytes
from compression.payload import quiet
from compression.stages import Indices, Vector, is_finite
from conf.schema import FOREVER
from strategy.late import Late
from strategy.mean import SparseMean
from strategy.nodes import OrderedGrid
from strategy.server import FLOWER, HOPELESS, STEP, EvaluateFn, ParameterServer, expect_positive
from strategy.staleness import Ignored, Staleness
from strategy.statistics import StatisticsMix
from task.optimizers import SGD
from task.orders import EXAMPLES, LOSS, Orders

log = getLogger("edgewire")
IGNORED = Ignored()
SOME = Layout(("weight",), ((2, 2),), ("float32",))  # enough to see who keeps a memory


class Sent(NamedTuple):
    """What the server remembers of a message under way."""

    node: int
    number: int  # among the node's messages
    when: float  # a moment of the grid's `now`
    version: int  # of the model in it
    seen: Any  # of the staleness policy
    model: Vector | None  # that the node got, if it is to be mixed


class Asynchronous(ParameterServer):
    """A node gets the newest model, and is waited for by nobody; its update is applied at once.

    x = x - rate * factor * update, where `staleness` gives the factor: ASGD, Comp-ASGD and AdaComp
    (Hardy, Le Merrer, Sericola 2017, Algorithms 1 and 2). An update is a gradient, at the run's lr,
    or a delta (`update="delta"`), at `server_lr`. `mix`: x = (1 - a) x + a (the node's model), a =
    server_lr * factor (FedAsync, Xie et al. 2019, Algorithm 1). `proximal_mu`: its rho, of the
    nodes' pull towards the model that they were sent, rho / 2 |x - x_sent|^2. `buffer` K > 1: K
    updates make one step with their mean (FedBuff, Nguyen et al. 2022, Algorithm 1); staleness then
    counts steps, and what is left in the buffer at the end is not applied. At most `in_flight`
    messages are with a node at a time: it need not wait for the server. With a `downlink` codec a
    node gets what has changed since the version that it was last known to have; what encoding
    loses stays in that difference.

    The run ends after `pushes` answers, used or not. Every `record_every` the model is handed to
    `evaluate_fn`. A node that does not answer within the time-out is sent a message anew.
    """

    unit = "PUSH"

    def __init__(
        self,
        *,
        pushes: int = 20_000,
        staleness: Staleness = IGNORED,
        update: str = "gradient",
        server_lr: float = 1.0,
        mix: bool = False,
        proximal_mu: float = 0.0,
        buffer: int = 1,
        in_flight: int = 1,
        record_every: int = 1,
        uplink: Codec | None = None,
        downlink: Codec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(update, server_lr)
        counts = {"buffer": buffer, "in_flight": in_flight, "record_every": record_every}
        expect_positive(pushes=pushes, **counts)
        if buffer > pushes:
            raise ValueError(f"buffer={buffer} is never full with pushes={pushes}")
        if mix and (update != "delta" or buffer > 1 or server_lr > 1):
            raise ValueError("mix goes with update=delta, buffer=1 and a server_lr of at most 1")
        if not 0 <= proximal_mu < math.inf or (proximal_mu and update != "delta"):
            raise ValueError("proximal_mu, a number of at least 0, goes with update=delta")
        if not isinstance(staleness, Staleness):
            raise ValueError(
                "staleness is chosen by strategy/staleness=none, global, polynomial, per_parameter"
            )
        if in_flight > 1 and downlink is not None and not downlink.exact:
            raise ValueError("in_flight above 1 goes with downlink=full: a node keeps one version")
        if in_flight > 1 and uplink and uplink.memory_bytes(SOME):
            raise ValueError("in_flight above 1 goes with methods that keep no memory")
        self._downlink = None if downlink is None else Differences(downlink, seed)
        self.pushes, self.staleness, self.mix, self.buffer = pushes, staleness, mix, buffer
        self.in_flight, self.record_every = in_flight, record_every
        self._mu = proximal_mu

    def summary(self) -> None:
        """Log what the strategy does."""
        policy = type(self.staleness).__name__
        FLOWER.info("asynchronous: a %s a push, staleness %s", self.update, policy)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run until `pushes` answers are there; arguments and result as `Strategy.start`.

        `num_rounds` is not used. `timeout`: seconds for one message. `train_config["lr"]` is read
        anew for every message.
        """
        self._grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        self._config = train_config or ConfigRecord({"lr": 0.1})
        self._timeout = timeout if timeout < FOREVER else math.inf
        self._announce()
        self._begin(initial_arrays)
        arrays, result = flat_record(self._replica.model), Result()

        def record(done: int) -> None:
            self._evaluate(evaluate_fn, done, self.pushes, arrays, result)

        record(0)
        done = 0
        while done < self.pushes:
            self._greet()
            replies = self._grid.pull_before(self._flight, self._deadline())
            if not replies and not self._anybody():
                log.warning("no node is left after %d of %d pushes", done, self.pushes)
                if done % self.record_every:
                    self._sum_up()
                    record(done)
                break
            for reply in replies:
                sent = self._flight.pop(reply.metadata.reply_to_message_id)
                self._late.answered(sent.node, sent.number)
                done += 1
                self._receive(sent, reply)
                if done % self.record_every == 0 or done == self.pushes:
                    self._sum_up()
                    record(done)
                if done == self.pushes:
                    break
                self._send(sent.node)
        result.arrays = to_arrays(self._replica.model, self._layout)
        return result

    def _begin(self, initial_arrays: ArrayRecord) -> None:
        self._replica, self._layout = Replica.of(SGD(), initial_arrays)
        self._whole = Steps(self._replica, self._layout, follow=False)
        plain_bytes, way = flower_bytes(initial_arrays), self._downlink or self._whole
        self._dialogue = Dialogue(way, self.traffic, self._layout, plain_bytes)
        self._statistics = StatisticsMix(self._layout)
        self._buffered, self._mean = 0, SparseMean(self._statistics.trained)
        self._flight: dict[str, Sent] = {}  # in the order of sending
        self._late = Late(self._grid)
        self._known = set[int]()  # nodes that are sent messages
        self._count = Counter[int]()  # node -> messages it was sent
        self._losses: list[tuple[float, float]] = []  # with their weights, since the last record
        self._stale: list[int] = []
        self._looked, self._hopeless = -math.inf, 0
        self.staleness.start(self._layout.size)

    def _greet(self) -> None:
        """Send the model to nodes that are new, and again to those that did not answer in time."""
        while self._flight:
            message_id, sent = next(iter(self._flight.items()))
            if sent.when + self._timeout > self._grid.now:
                break
            del self._flight[message_id]
            self._late.add(message_id, sent.node, sent.number)
            self._useless(sent.node, f"no answer in time (timeout={self._timeout:g})")
            if sent.node in self._grid.get_node_ids():
                self._send(sent.node)
            else:
                self._known.discard(sent.node)
                self._looked = min(self._looked, self._grid.next_look)
        if self._grid.now >= self._looked:
            under_way = Counter(sent.node for sent in self._flight.values())
            for node in self._grid.get_node_ids():
                if node not in self._known:
                    self._known.add(node)
                    for _ in range(self.in_flight - under_way[node]):
                        self._send(node)
            self._looked = self._grid.next_look

    def _useless(self, node: int, reason: str) -> None:
        """Count a message that brought nothing; the run ends when for long none has."""
        self._fail(node, reason)
        self._hopeless += 1
        if self._hopeless >= HOPELESS * max(len(self._known), 1):
            raise PayloadError(f"{self._hopeless} updates in a row were of no use: {reason}")

    def _deadline(self) -> float:
        """Return when to look again, if no answer comes before."""
        oldest = next(iter(self._flight.values()), None)
        return min(self._looked, math.inf if oldest is None else oldest.when + self._timeout)

    def _anybody(self) -> bool:
        """Return whether anything can still happen."""
        return self._deadline() < math.inf or bool(self._grid.virtual_seconds is None)

    def _send(self, node: int) -> None:
        """Send a node the model as it is now."""
        self._count[node] += 1
        count = self._count[node]
        orders = Orders(cast(float, self._config["lr"]), count, self._mu)
        note = ToNode(count, workers=self.buffer)
        if self._downlink:
            self._offer(self._downlink)
        ((message, parcel),) = self._dialogue.messages([node], STEP, orders.config(), note)
        (message_id,) = self._grid.push_messages([message], self._timeout)
        now, version, seen = self._grid.now, self._replica.version, self.staleness.seen()
        model = self._received(parcel) if self.mix else None
        self._flight[message_id] = Sent(node, count, now, version, seen, model)

    def _offer(self, downlink: Differences) -> None:
        """Give the newest model to a downlink of differences."""
        if downlink.crowded(len(self._known)):
            downlink.tidy(self._dialogue.ledger.held)
        model = Model(self._replica.model)
        downlink.offer(model, form_of_updates(self._layout), named=False)

    def _received(self, parcel: Parcel) -> Vector:
        """Return the model that a node has once it has got a parcel."""
        if parcel.received is not None:
            return parcel.received.vector
        return decode_update(parcel.arrays[MODEL].data, self._layout).dense()

    def _receive(self, sent: Sent, reply: Message) -> None:
        """Apply an answer, or say why not."""
        try:
            update, metrics = self._dialogue.read(reply, [LOSS])
            self._apply(sent, update)
        except PayloadError as error:
            self._useless(sent.node, str(error))
            return
        self._hopeless = 0
        self._dialogue.receipts.applied([sent.node])
        self.traffic.client_updates += 1
        self._losses.append((number(metrics, LOSS), number(metrics, EXAMPLES)))

    @quiet
    def _apply(self, sent: Sent, update: Update) -> None:
        """Take the step. Raises `PayloadError` if it would leave float32: the model stays."""
        stale = self._replica.version - sent.version
        rate = self.rate(cast(float, self._config["lr"]))
        indices, values, statistics = self._statistics.cut(update)
        if sent.model is not None:
            indices, values = None, self._towards(sent.model, indices, values)
        touched = None if indices is None else update.indices
        factor = self.staleness.factor(stale, sent.seen, touched)
        share: Vector | np.float32 = factor
        if isinstance(factor, np.ndarray):
            factor, share = factor[: len(values)], factor[len(values) :]
        values = values * factor
        self._expect_finite(indices, values, rate)
        self._stale.append(stale)
        self._statistics.add(statistics, share * (1 if self.update == "gradient" else rate))
        if self.buffer > 1:
            self._mean.add(indices, values)
            self._buffered += 1
            if self._buffered < self.buffer:
                return
            (indices, values), self._buffered = self._mean.take(), 0
        indices, values = self._statistics.joined(indices, values, self._replica.model)
        if self.buffer > 1:
            self._expect_finite(indices, values, rate)
        self._replica.apply(indices, values, rate)
        self.staleness.applied(indices)
        self._whole.add(b"", rate)

    def _expect_finite(self, indices: Indices | None, values: Vector, rate: float) -> None:
        moved = self._replica.model[slice(len(values)) if indices is None else indices]
        if not is_finite(moved - np.float32(rate) * values):
            raise PayloadError("its update is beyond float32")

    def _towards(self, model: Vector, indices: Indices | None, values: Vector) -> Vector:
        """Return x less the node's own model, what it trains: mixing subtracts a share of it."""
        size = self._statistics.trained
        trained = model[:size].copy()
        trained[slice(None) if indices is None else indices] -= values
        return cast(Vector, self._replica.model[:size] - trained)

    def _sum_up(self) -> None:
        """Set `train_metrics` to the means since the last record."""
        self.train_metrics = None
        if self._losses:
            total = sum(weight for _, weight in self._losses)
            loss = sum(loss * weight for loss, weight in self._losses) / total
            staleness = sum(self._stale) / len(self._stale)
            self.train_metrics = {"loss": loss, "staleness": staleness}
        self._losses, self._stale = [], []
