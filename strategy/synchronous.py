"""Synchronous sparse averaging: every node sends an update, and the server applies their mean."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from edgewire.compression.base import DIVERGED, PayloadError, is_finite, quiet
from edgewire.compression.decoder import decode_update
from edgewire.compression.flower import to_arrays
from edgewire.compression.flower.headers import (
    DRIFT,
    EXAMPLES,
    LOSS,
    STEPS,
    DownlinkHeader,
    TrainConfig,
    is_count,
)
from edgewire.compression.flower.message_size import size_of
from edgewire.compression.flower.records import values_of
from edgewire.compression.flower.replica import ACTIVITY, MODEL, VERSION
from edgewire.compression.flower.server.inbox import ReceivedUpdate, count_received
from edgewire.compression.flower.server.session import forget_nodes
from edgewire.conf.check import NO_CODECS, Codecs
from edgewire.conf.option_group import OptionGroup, bounded
from edgewire.strategy.aggregation import EQUAL, Aggregation
from edgewire.strategy.base import FLOWER, STEP_MESSAGE, ParameterServer, Started
from edgewire.strategy.collector import RoundCollector, RoundCollectorState
from edgewire.strategy.deadline import Deadline, DeadlinePlanner, Measurement, NodePace, NodePlan
from edgewire.strategy.node_sums import NodeEvaluation
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.server import PLAIN_SGD, ModelState, Server
from edgewire.task.errors import TaskError
from edgewire.task.optimizers import ServerOptimizer

FOLLOWS = ("steps", "differences", "weights")  # how nodes get the newest model
NO_DEADLINE = Deadline()
log = getLogger("edgewire")


@dataclass
class AveragingState(ModelState):
    """The state of a synchronous run, as a checkpoint holds it.

    `memory`: the downlink codec's residual. `paces`: by node, what a deadline's plans follow from.
    `evaluations`: of the exchange that evaluates the model at the nodes.
    `common`: what the nodes of the next round have in common, for a secure sum.
    """

    round: int = 0
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)
    exchange: RoundCollectorState = field(default_factory=RoundCollectorState)
    paces: dict[int, NodePace] = field(default_factory=dict)
    evaluations: RoundCollectorState = field(default_factory=RoundCollectorState)
    common: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Participation(OptionGroup):
    """Says which nodes train in a round, and when the round ends.

    In each round the server selects the share `fraction_train` of the nodes at random, but at least
    `min_train_nodes`. The round ends when the share `quorum` of these nodes have replied, or at the
    timeout. The server does not apply an update that arrives later. If the method has a residual,
    the node adds this update back to its residual.

    After the rounds of `eval_every`, the share `fraction_evaluate` of the nodes, drawn likewise,
    evaluates the newest model on samples of their own. `quorum` holds for these replies, too.
    """

    fraction_train: float = bounded(1.0, at_least=0, at_most=1)
    min_train_nodes: int = bounded(1, at_least=0)
    quorum: float = bounded(1.0, above=0, at_most=1)
    fraction_evaluate: float = bounded(0.0, at_least=0, at_most=1)

    def drawn(self, nodes: int) -> int:
        """Return how many of so many nodes train in a round."""
        return min(max(int(nodes * self.fraction_train), self.min_train_nodes), nodes)

    def needed(self, drawn: int) -> int:
        """Return after how many replies of so many drawn nodes a round ends."""
        return math.ceil(round(self.quorum * drawn, 6))


class SparseAveraging(ParameterServer):
    """Takes a step with the mean of all nodes' sparse updates; an entry that was not sent is 0.

    The papers of eSGD (Algorithm 1, line 2), CE-SGD (Algorithm 2) and DGC (Algorithm 1) train in
    this way. An update is the gradient of one mini-batch (`update="gradient"`), or a delta, the
    model before local steps minus the model after them (`update="delta"`). The server's `optimizer`
    uses the mean as a gradient. The learning rate is the run's for gradients, and `server_lr` for
    deltas. Nodes send BatchNorm's running statistics as values, not as changes. With gradients, the
    nodes' mean replaces the server's statistics. With deltas, the server moves its statistics
    towards the nodes' mean, by the share min(`server_lr`, 1).

    With a downlink codec in `codecs`, nodes get the averaged update and repeat the server's step on
    their copy of the model. A node that missed rounds gets their updates. With `follow=
    "differences"` the server applies the mean as it is, and a node gets the encoded difference of
    the server's model and the node's own. This has fewer bytes if nodes train in few rounds. With
    `follow="weights"` the server encodes the model itself, and the nodes store none. FLASC (Kuo et
    al. 2024) sends the largest weights in this way; what is not sent is 0 at the node. Without this
    codec, nodes get the whole model. `participation`: which nodes train in a round, and when the
    round ends. `aggregation`: how the server combines updates.
    `planning`: how long a round should last; each node then gets steps and a density that fit.
    `verify_every`: the number of rounds after which nodes compare the checksum of their model with
    the server's (0: never). `mask_received`: True if a node applies the averaged update only at the
    entries that it sent itself (line 7 of CE-SGD's Algorithm 2). Then the metric `drift` is the
    nodes' mean distance from the server's model. `edgewire.conf.rules` refuses options that
    exclude each other.
    """

    State = AveragingState
    state: AveragingState
    no_steps = "give strategy/optimizer="
    rounds: Callable[..., Rounds] | None = None  # what runs the rounds; None: `Rounds`

    def __init__(
        self,
        *,
        optimizer: ServerOptimizer = PLAIN_SGD,
        update: str = "gradient",
        server_lr: float = 1.0,
        participation: Participation = Participation(),
        aggregation: Aggregation = EQUAL,
        planning: Deadline = NO_DEADLINE,
        verify_every: int = 100,
        mask_received: bool = False,
        follow: str = "steps",
        codecs: Codecs = NO_CODECS,
    ) -> None:
        super().__init__(update, server_lr, codecs)
        if verify_every < 0:
            raise ValueError(f"verify_every must be 0 (never) or more, not {verify_every}")
        if follow not in FOLLOWS:
            raise ValueError(f"follow must be one of {', '.join(FOLLOWS)}, not {follow!r}")
        if not isinstance(optimizer, ServerOptimizer):
            raise ValueError(
                "optimizer is chosen by strategy/optimizer=, see conf/strategy/optimizer"
            )
        if taken := {MODEL, VERSION, ACTIVITY}.intersection(optimizer.names):
            kind = type(optimizer).__name__
            raise ValueError(f"{kind}.names holds {min(taken)}, which is taken: give another name")
        self.optimizer, self.participation, self.aggregation = optimizer, participation, aggregation
        self.fraction_evaluate = participation.fraction_evaluate  # as Flower's strategies have it
        self.verify_every, self.mask_received = verify_every, mask_received
        self.planning, self.follow = planning, follow

    def abandon(self, back: Collection[int] = ()) -> None:
        """Delete late messages; between two rounds no other messages are without a reply."""
        for exchange in (self.state.exchange, self.state.evaluations):
            exchange.late.messages.clear()
        self.state.session.go_back(back)

    knows_context = True

    def summary(self) -> None:
        """Log the kind of update, the server's optimiser and the quorum."""
        what = self.update, type(self.optimizer).__name__, self.participation.quorum
        FLOWER.info("sparse averaging of a %s, %s at the server, quorum %g", *what)

    def _train(self, run: Started) -> None:
        """Run the rounds."""
        rounds = (self.rounds or Rounds)(self, self._ordered(run.grid), run.arrays)
        if not run.goes_on:
            self._evaluate(run, 0, run.rounds, rounds.arrays)
        while self.state.round < run.rounds:
            if not rounds.advance(cast(float, run.train_config["lr"]), run.timeout):
                log.warning("%s; %d of %d rounds", rounds.ended, self.state.round, run.rounds)
                break
            last = self.state.round == run.rounds
            asks = self.fraction_evaluate and (last or not self.state.round % self.eval_every)
            self.evaluate_metrics = None  # of another round
            if asks and (found := rounds.evaluated(run.timeout)):
                self.evaluated, self.evaluate_metrics = found
            self._evaluate(run, self.state.round, run.rounds, rounds.arrays)
            self.on_state_complete()
        run.result.arrays = to_arrays(rounds.model, rounds.layout, rounds.reported.natives)
        self.failures.end()


class Rounds(Server):
    """Runs `SparseAveraging` round by round; `state` holds all that a checkpoint needs."""

    updates = 0.0  # the updates of a round, as nodes are told them; 0: as many as there are
    least_online = 1, ""  # how many nodes a round waits for, and what asks for so many
    ended = "no node is left"  # why `advance` returned False

    def __init__(self, strategy: SparseAveraging, grid: OrderedGrid, arrays: ArrayRecord) -> None:
        state = strategy.state
        planning, uplink, follow = strategy.planning, strategy.codecs.uplink, strategy.follow
        self._measured = (LOSS, DRIFT) if strategy.mask_received else (LOSS,)
        super().__init__(
            strategy,
            grid,
            arrays,
            state,
            self._measured,
            strategy.optimizer,
            strategy.aggregation,
            follow=follow,
            from_initial=True,
            every_round=planning.deadline is not None,
        )
        self._strategy, self._state = strategy, state
        # Of the server's steps.
        self._downlink = strategy.codecs.downlink if follow == "steps" else None
        self._exchange = RoundCollector(grid, state.exchange)
        self._evaluation: NodeEvaluation | None = None
        if strategy.fraction_evaluate:
            self._evaluation = NodeEvaluation(self, strategy, grid, state.evaluations)
        if uplink is None or not uplink.sparsifier.scalable:  # there is no density to plan
            planning = replace(planning, least_factor=1.0, most_factor=1.0)
        if uplink is not None:
            planning = replace(planning, most_bits=uplink.quantizer.finer_by(planning.most_bits))
        self._planner = DeadlinePlanner(planning, state.paces, limited=strategy.update == "delta")
        self._mean = strategy.aggregation.mean_of(self.reported.trained)

    def advance(self, lr: float, timeout: float) -> bool:
        """Run one round at the learning rate `lr`; return False if no node is available.

        `timeout`: the most seconds of the round.
        """
        number = self._state.round + 1
        asked, needed = self.drawn(number)
        if not asked:
            return False
        self._round(number, asked, needed, lr, timeout)
        return True

    def _round(self, number: int, asked: list[int], needed: int, lr: float, timeout: float) -> None:
        messages = self._messages(number, asked, needed, lr)
        replies = self._exchange(messages, needed, timeout)
        self._aggregate(number, asked, replies, lr)
        self._state.round = number

    def expect_changes(self, why: str) -> None:
        """Raise `TaskError`, which begins with `why`, for a model with tensors sent as values."""
        initial = self._strategy.initial
        others = [] if initial is None else sorted(initial.arrays.keys() - {*initial.frozen})
        if self.reported.size or others:
            what = "BatchNorm's statistics" if self.reported.size else others[0]
            raise TaskError(
                f"{why}, and {what} would be sent as values: give personal=batchnorm, or a model "
                "without such tensors"
            )

    def evaluated(self, timeout: float) -> tuple[dict[str, Any], MetricRecord] | None:
        """Let nodes evaluate the newest model; return what `NodeEvaluation` returns.

        A node whose reply to the training is late is not asked: it would reply later still.
        `timeout`: the most seconds.
        """
        nodes, among = list(self._grid.get_node_ids()), self._strategy.participation
        if self._evaluation is None or not nodes:
            return None
        number, count = self._state.round, max(int(len(nodes) * among.fraction_evaluate), 1)
        nodes = self._sample(nodes, count, f"{number} evaluate")
        late = {each.node for each in self._state.exchange.late.messages.values()}
        out = late | self._evaluation.resting()
        nodes = [node for node in nodes if node not in out] or nodes
        return self._evaluation(nodes, number, among.needed(len(nodes)), timeout)

    def _messages(self, number: int, asked: list[int], needed: int, lr: float) -> list[Message]:
        """Return the messages that bring each node to the newest version of the model.

        Nodes that have the same version get the same content. `needed`: after how many replies the
        round ends.
        """
        verify = self._downlink is not None and self._strategy.verify_every
        checksum = self.steps.checksum() if verify and not number % verify else None
        workers = max(round(self.updates), 1) if self.updates else min(needed, len(asked))
        common = self._state.common or None
        header = DownlinkHeader(number, workers=workers, checksum=checksum, common=common)
        self.offer(number)
        alike: dict[NodePlan, list[int]] = {}
        for node in asked:
            alike.setdefault(self._planner.plan(node), []).append(node)
        made: dict[int, Message] = {}
        for plan, nodes in alike.items():
            orders = TrainConfig(lr, number, most_steps=plan.steps).config()
            factor = None if plan.density_factor == 1 else float(plan.density_factor)
            planned = header._replace(density_factor=factor, more_bits=plan.more_bits or None)
            sent = self.session.messages(
                nodes, STEP_MESSAGE, orders, planned, self.reported.natives
            )
            made |= zip(nodes, (message for message, _ in sent), strict=True)
        return [made[node] for node in asked]

    def drawn(self, number: int) -> tuple[list[int], int]:
        """Return the nodes to ask, in the grid's order, and the number of replies to wait for.

        The choice depends only on the seed and the round. Nodes whose backoff has not ended are
        left out, unless this would leave out all nodes.
        """
        nodes = self._grid.wait_for_nodes(*self.least_online)
        among, state = self._strategy.participation, self._state
        self._present = len(nodes)
        if gone := self.session.gone(lambda: nodes):
            kept = state.exchange, state.evaluations, state.screens, state.paces, state.failures
            forget_nodes(gone, *kept)
        nodes = self._sample(nodes, among.drawn(len(nodes)), f"{number} train")
        needed = among.needed(len(nodes))
        resting = self._exchange.resting()
        return [node for node in nodes if node not in resting] or nodes, needed

    def _sample(self, nodes: list[int], count: int, stream: str) -> list[int]:
        """Return `count` of the nodes, in their order; `stream` names the random stream."""
        if count >= len(nodes):
            return nodes
        draw = random.Random(f"{self._strategy.codecs.seed} {stream}")
        return [nodes[i] for i in sorted(draw.sample(range(len(nodes)), count))]

    @quiet
    def _aggregate(
        self, number: int, asked: list[int], replies: Mapping[int, Message], lr: float
    ) -> None:
        """Decode a round's replies, average the usable updates, and take the server's step.

        Raises `PayloadError` after too many consecutive rounds that had replies, but no usable
        reply (`FailurePolicy`).
        """
        failures = self._strategy.failures
        used: dict[int, MetricRecord] = {}
        rate = lr if self._strategy.rate is None else self._strategy.rate
        failures.begin_round(asked=len(asked))
        # If the round ended before the timeout, the quorum was complete. Then a node without a
        # reply is not a failure. The updates are added in the order of the nodes, not of arrival,
        # so that the float sum is reproducible.
        here = [n for n in asked if n in replies or self._exchange.time_was_up]
        planned = self._strategy.planning.deadline is not None
        sizes = {n: size_of(r.content) for n, r in replies.items() if planned and not r.has_error()}
        for node, found in self._read(here, replies):
            try:
                if isinstance(found, PayloadError):
                    raise found
                used[node] = self._add(node, found, rate)
                failures.succeeded(node)
            except PayloadError as error:
                failures.leave_out(node, str(error), f"round {number}: ")
        self._measure(asked, sizes, replies, used)
        failures.end_round(number, len(used), count_received(list(replies.values())))
        self.use(used, rate)

    def use(self, used: Mapping[int, MetricRecord], rate: float) -> None:
        """Take the step with a round's updates, if any; `used`: the metrics of their nodes."""
        self._state.train_metrics = self._averaged(list(used.values())) if used else None
        if used:
            self._step(rate, len(used))
            self.session.acks.applied(used)

    def _read(
        self, nodes: list[int], replies: Mapping[int, Message]
    ) -> Iterable[tuple[int, ReceivedUpdate | PayloadError]]:
        """Decode the replies of the nodes one by one; an error stands for an unusable reply.

        While the usual norms are unknown, all replies are decoded before any is used.
        """
        model, natives = self.reported.of(self.model), self.reported.natives

        def read(node: int) -> ReceivedUpdate | PayloadError:
            number = self._state.round + 1
            try:
                return self.inbox.read(node, number, replies.get(node), model, natives)
            except PayloadError as error:
                return error

        found: Iterable[tuple[int, ReceivedUpdate | PayloadError]]
        found = ((node, read(node)) for node in nodes)
        if not self.inbox.screens.vectors.knows:
            found = list(found)
            self.inbox.observe({n: e for n, e in found if isinstance(e, ReceivedUpdate)})
        return found

    def _measure(
        self,
        asked: list[int],
        sizes: Mapping[int, int],
        replies: Collection[int],
        used: Mapping[int, MetricRecord],
    ) -> None:
        """Tell the planner the seconds, steps and bytes of the used replies, and who was late.

        `sizes`: the bytes of the replies as they came. Reading a reply changes its content.
        """
        deadline, exchange = self._strategy.planning.deadline, self._exchange
        if deadline is None:
            return
        for node in asked:
            if node not in replies and exchange.lasted >= deadline:
                self._planner.miss(node)
            if node in used and is_count(steps := values_of(used[node]).get(STEPS)):
                spent = Measurement(exchange.seconds[node], steps, sizes[node])
                self._planner.observe(node, spent)

    def _add(self, node: int, found: ReceivedUpdate, rate: float) -> MetricRecord:
        """Add a node's update, and return its metrics; raises `PayloadError` if it is refused."""
        accepted = self.inbox.accept(node, found, self.model, rate)
        weight = accepted.weight
        self._mean.add(accepted.indices, accepted.values, weight)
        share = self._strategy.server_lr if self._strategy.update == "delta" else 1.0
        self.reported.add(accepted.statistics, accepted.natives, share, weight, node)
        return accepted.metrics

    def _averaged(self, metrics: list[MetricRecord]) -> dict[str, float]:
        """Return the means of the loss and the drift, weighted by the nodes' numbers of samples."""
        values = [values_of(each) for each in metrics]
        weights = [each[EXAMPLES] for each in values]
        return {
            name: sum([w * each[name] for w, each in zip(weights, values, strict=True)])
            / sum(weights)
            for name in self._measured
        }

    def _step(self, rate: float, used: int) -> None:
        """Take the optimiser's step with the mean of the added updates; `used`: their number.

        With a downlink codec, the nodes later repeat this step.
        """
        indices, values = self._mean.taken()
        if self._strategy.optimizer.incremental and used != self._present:
            values = values * np.float32(used / self._present)  # the other nodes sent no change
        if self._downlink is None and not is_finite(values):  # a downlink codec checks this itself
            raise PayloadError(f"the mean of the updates is beyond float32: {DIVERGED}")
        indices, values = self.reported.joined(indices, values, self.model)
        payload = b""
        if self._downlink is not None:
            seed = (self._strategy.codecs.seed << 64) | self.replica.version
            payload = self._downlink.encode_sparse(
                indices,
                values,
                self.layout,
                memory=self._state.memory,
                seed=seed,
                number=self.replica.version + 1,
                context=self.replica.context,
                common=self._state.common or None,
            )
            # The server uses what nodes decode. Exact tensors are whole in a lossless payload too.
            if not self._downlink.exact or self._downlink.exact_names:
                _, indices, values, *_ = decode_update(
                    payload, self.layout, context=self.replica.context
                )
        self.replica.apply(indices, values, rate)
        self.reported.take()
        self.steps.add(payload, rate)
