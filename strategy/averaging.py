"""Synchronous sparse averaging: every worker sends an update, all apply the same mean of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from logging import getLogger
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from compression import Codec, PayloadError, decode_update
from compression.flower import (
    flat_record,
    reason_of,
    to_arrays,
)
from compression.flower.traffic import flower_bytes
from compression.flower.uplink import Uplink
from compression.stages import DIVERGED, is_finite
from conf import Config
from strategy.answer import MOST, number, open_answer
from strategy.exchange import Exchange
from strategy.limits import expect_trained
from strategy.mean import SparseMean
from strategy.nodes import OrderedGrid
from strategy.server import FLOWER, HOPELESS, STEP, EvaluateFn, ParameterServer
from strategy.statistics import StatisticsMix
from strategy.versions import Versions, first_replica
from task.optimizers import SGD, ServerOptimizer

WEIGHTS = (None, "num-examples", "num-steps")  # metrics that every node reports
PLAIN_SGD = SGD()
log = getLogger("edgewire")


class SparseAveraging(ParameterServer):
    """x = optimiser(x, mean of all workers' sparse updates); what is not sent counts as 0.

    The scheme of eSGD (Algorithm 1, line 2), CE-SGD (Algorithm 2), DGC (Algorithm 1) and of all
    methods they are compared with. An update is the gradient of one mini-batch
    (`update="gradient"`) or what local steps changed, model before less model after
    (`update="delta"`); either way the server's `optimizer` takes it as a gradient, at the run's
    lr or, for a delta, at `server_lr`. BatchNorm's statistics are values, and mixed: the nodes'
    mean (for a delta the share `server_lr` of it, at most 1) takes the place of what was there.

    With a `downlink` codec nodes get the averaged update and take the server's own step on their
    replica; without one, the whole model. A round ends when `quorum` (a share) of the drawn nodes
    have answered, or at the time-out: what comes later is not applied, and put back at the node.
    Every `verify_every` rounds (0: never) nodes compare their replica's checksum with the server's.
    `weighted_by_key` names the metric that weighs a node's update (None: all the same).
    `mask_received`: CE-SGD's line 7 taken literally, at the nodes; their mean distance from the
    server's model is then the metric `drift`. `uplink`: the nodes' codec, which decoding does not
    need to know.
    """

    no_steps = "give strategy/optimizer="

    def __init__(
        self,
        *,
        optimizer: ServerOptimizer = PLAIN_SGD,
        update: str = "gradient",
        server_lr: float = 1.0,
        fraction_train: float = 1.0,
        min_train_nodes: int = 1,
        quorum: float = 1.0,
        weighted_by_key: str | None = None,
        verify_every: int = 100,
        mask_received: bool = False,
        uplink: Codec | None = None,
        downlink: Codec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(update, server_lr)
        if not 0 < quorum <= 1:
            raise ValueError(f"quorum must be a share above 0, at most 1, not {quorum:g}")
        if verify_every < 0:
            raise ValueError(f"verify_every must be 0 (never) or more, not {verify_every}")
        if mask_received and (downlink is None or not (uplink and uplink.sparsifier.repeats)):
            raise ValueError("mask_received goes with compression=cesgd or esgd, downlink=average")
        if mask_received and uplink and uplink.exact_names:
            raise ValueError("mask_received does not go with compression.exact=")
        if not isinstance(optimizer, ServerOptimizer):
            raise ValueError("optimizer is chosen by strategy/optimizer=sgd, momentum or adam")
        if weighted_by_key not in WEIGHTS:
            raise ValueError(f"weighted_by_key must be null or one of {', '.join(WEIGHTS[1:])}")
        self.optimizer = optimizer
        self.fraction_train, self.min_train_nodes = fraction_train, min_train_nodes
        self.quorum, self.weighted_by_key = quorum, weighted_by_key
        self.verify_every = verify_every
        self._measured = ("loss", "drift") if mask_received else ("loss",)
        self._downlink, self._seed = downlink, seed
        self._asked: list[int] = []

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError`, one line, for what of a run's configuration does not go with it."""
        expect_trained(config.nodes, self.fraction_train, self.min_train_nodes)
        super().check_config(config)

    def summary(self) -> None:
        """Log what the strategy does."""
        what = self.update, type(self.optimizer).__name__, self.quorum
        FLOWER.info("sparse averaging of a %s, %s at the server, quorum %g", *what)

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
        """Run the rounds; arguments and result as `Strategy.start`, arrays as one flat vector.

        `train_config["lr"]` is read anew in every round. `timeout`: seconds of a round.
        """
        grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        self._announce()
        self._begin(initial_arrays)
        config = train_config or ConfigRecord({"lr": 0.1})
        self._exchange, result = Exchange(grid), Result()
        arrays = flat_record(self._replica.model)
        for server_round in range(num_rounds + 1):
            if server_round:
                messages = self.configure_train(server_round, arrays, config, grid)
                if not messages:
                    log.warning("no node is left; %d of %d rounds", server_round - 1, num_rounds)
                    break
                answers = self._exchange(messages, self._needed, timeout)
                self.aggregate_train(server_round, answers.values())
            self._evaluate(evaluate_fn, server_round, num_rounds, arrays, result)
        result.arrays = to_arrays(self._replica.model, self._layout)
        return result

    def _begin(self, initial_arrays: ArrayRecord) -> None:
        self._replica, self._layout = first_replica(self.optimizer, initial_arrays)
        layout = self._layout
        self._float32_bytes = flower_bytes(initial_arrays)
        self._versions = Versions(self._replica, layout, follow=self._downlink is not None)
        self._statistics = StatisticsMix(layout)
        self._mean = SparseMean(self._statistics.trained)
        self._uplink = Uplink()
        self._memory: dict[str, Any] = {}  # the downlink codec's
        self._hopeless = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the nodes; bring each to the newest version. Nodes alike share one content."""
        self._lr = cast(float, config["lr"])
        told = {**config, "server-round": server_round}
        follow = self._downlink is not None
        if follow and self.verify_every and not server_round % self.verify_every:
            told["checksum"] = self._versions.checksum()
        contents: dict[tuple[int | None, int], tuple[RecordDict, int]] = {}
        messages = []
        self._draw(server_round, grid)
        told["workers"] = min(self._needed, len(self._asked))
        for node in self._asked:
            key = self._versions.base_of(node), self._uplink.last_applied(node)
            if key not in contents:
                parcel = self._versions.parcel(key[0])
                record = ConfigRecord({**told, **parcel.config, "applied": key[1]})
                contents[key] = (
                    RecordDict({"arrays": parcel.arrays, "config": record}),
                    parcel.bytes,
                )
            content, size = contents[key]
            messages.append(Message(content, node, STEP, group_id=str(server_round)))
            self.traffic.downlink_bytes += size
        self.traffic.downlink_bytes_float32 += self._float32_bytes * len(messages)
        return messages

    def _draw(self, server_round: int, grid: Grid) -> None:
        """Decide which nodes are asked, in their own order, and how many answers will do.

        They are drawn from (seed, round) alone; those that rest are left out unless all do.
        """
        nodes = cast(OrderedGrid, grid).wait_for_nodes()
        count = max(int(len(nodes) * self.fraction_train), self.min_train_nodes)
        if count < len(nodes):
            draw = random.Random(f"{self._seed} {server_round} train")
            nodes = [nodes[i] for i in sorted(draw.sample(range(len(nodes)), count))]
        self._needed = math.ceil(round(self.quorum * len(nodes), 6))
        resting = self._exchange.resting()
        self._asked = [node for node in nodes if node not in resting] or nodes

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies, average what can be used in the order of the nodes, take the step.

        Raises `PayloadError` when for `HOPELESS` rounds there were answers, and none was of use.
        """
        answers = {reply.metadata.src_node_id: reply for reply in replies}
        used: dict[int, MetricRecord] = {}
        reason = ""
        for node in self._asked:
            if node not in answers and not self._exchange.time_was_up:
                continue  # enough others were there before it
            try:
                used[node] = self._add(node, answers.get(node))
            except PayloadError as error:
                reason = str(error)
                self._fail(node, reason, f"round {server_round}: ")
        self._hopeless = 0 if used or not answers else self._hopeless + 1
        if self._hopeless == HOPELESS:
            raise PayloadError(f"no update could be used in {HOPELESS} rounds: {reason}")
        self.train_metrics = self._averaged(list(used.values())) if used else None
        if used:
            self._step()
            self._uplink.applied(used)
            self.traffic.client_updates += len(used)
        return None, None

    def _add(self, node: int, reply: Message | None) -> MetricRecord:
        """Decode a node's answer and add its update; return its metrics.

        Raises `PayloadError` if it cannot be used; then nothing was added.
        """
        if reply is None:
            raise PayloadError("no answer in time")
        if reply.has_error():
            self._versions.lost(node)
            raise PayloadError(reason_of(reply))
        self._versions.confirm(node, self._replica.version)
        answer = open_answer(reply, self.traffic, self._float32_bytes, self._measured)
        weight = number(answer.metrics, self.weighted_by_key) if self.weighted_by_key else 1.0
        if not 0 < weight < MOST:
            raise PayloadError("its weight must be above 0, below 2^63")
        update = self._uplink.decode(node, answer.payload, answer.note, self._layout)
        indices, values, statistics = self._statistics.cut(update)
        self._mean.add(indices, values, weight)
        share = self.server_lr if self.update == "delta" else 1.0
        self._statistics.add(statistics, share, weight)
        return answer.metrics

    def _averaged(self, metrics: list[MetricRecord]) -> dict[str, float]:
        """Return the mean loss (and drift), weighed by the nodes' samples."""
        weights = [cast(float, each["num-examples"]) for each in metrics]
        return {
            name: sum(w * cast(float, m[name]) for w, m in zip(weights, metrics, strict=True))
            / sum(weights)
            for name in self._measured
        }

    def _step(self) -> None:
        """Take the optimiser's step with the mean of what was added, as all nodes will."""
        indices, values = self._mean.take()
        if self._downlink is None and not is_finite(values):  # else encoding looks
            raise PayloadError(f"the mean of the updates is beyond float32: {DIVERGED}")
        indices, values = self._statistics.joined(indices, values, self._replica.model)
        rate = self.rate(self._lr)
        payload = b""
        if self._downlink is not None:
            seed = (self._seed << 64) | self._replica.version
            payload = self._downlink.encode_sparse(
                indices, values, self._layout, memory=self._memory, seed=seed
            )
            if not self._downlink.exact:
                _, indices, values, *_ = decode_update(payload, self._layout)
        self._replica.apply(indices, values, rate)
        self._versions.add(payload, rate)
