"""Runs Flower's strategies over a compressed grid, round by round, and saves their state."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isroutine
from typing import Any, cast

from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import QFedAvg, Strategy

from edgewire.compression.flower import (
    CompressedGrid,
    FailureLimits,
    ReplyRules,
    StatisticsAveraging,
    Traffic,
    flat_record,
    layout_of,
    to_vector,
)
from edgewire.compression.flower.headers import EXAMPLES, LOSS, SECONDS, STEPS
from edgewire.compression.flower.native_tensors import NONE, natives_of, with_natives
from edgewire.compression.flower.records import FlatArray
from edgewire.compression.flower.server.compressed_grid import CompressedGridState
from edgewire.compression.flower.server.failure_policy import MAX_CONSECUTIVE_FAILURES, FailedNode
from edgewire.compression.flower.server.session import InitialModel
from edgewire.compression.flower.server.statistics_averaging import mean, values_of_array, wrapped
from edgewire.compression.screening import Screening
from edgewire.conf.check import NO_CODECS, Codecs
from edgewire.strategy.aggregation import NodeMeans
from edgewire.strategy.base import RunStrategy, Started
from edgewire.strategy.node_sums import EVALUATE, evaluated, take_keys
from edgewire.strategy.run.serialization import expect_savable
from edgewire.task.objectives import Objective

TRAINED = (LOSS, EXAMPLES, STEPS, SECONDS)  # metrics of the ClientApp's replies to training
LEVEL = 10.0  # a loss is limited to between the round's median / LEVEL and the median * LEVEL


@contextmanager
def global_random(seed: str) -> Iterator[None]:
    """In this context, Python's global generator has this seed; afterwards it is as before."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def level(replies: list[Message]) -> list[Message]:
    """Limit each loss to between median / `LEVEL` and median * `LEVEL`; return the replies.

    Reason: q-FedAvg weights nodes by their losses, and the smallest loss limits its step. A single
    node that reports a loss of 0 would stop the training.
    """
    found = [
        (metrics, float(cast(float, metrics[LOSS])))
        for reply in replies
        if not reply.has_error()
        for metrics in reply.content.metric_records.values()
    ]
    if found:
        usual = sorted(loss for _, loss in found)[(len(found) - 1) // 2]
        for metrics, loss in found:
            metrics[LOSS] = min(max(loss, usual / LEVEL), usual * LEVEL)
    return replies


@dataclass
class FederatedState:
    """The state of a run with one of Flower's strategies, as a checkpoint holds it.

    `train_metrics`: the nodes' metrics of the last round; None if no node replied. `round`: the
    last finished round. `arrays`: the model after this round. `kept`: for the strategy and each
    strategy that it wraps, its attributes by name. `weights`: by node, for `NodeMeans`.
    """

    traffic: Traffic = field(default_factory=Traffic)
    train_metrics: MetricRecord | None = None
    round: int = 0
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    grid: CompressedGridState = field(default_factory=CompressedGridState)
    kept: list[dict[str, Any]] = field(default_factory=list)
    weights: dict[int, float] = field(default_factory=dict)


class Federated(RunStrategy, StatisticsAveraging):
    """Runs any of Flower's strategies over a compressed grid.

    Flower's strategies sample nodes with Python's global random generator. While one of their
    methods runs, that generator is seeded by the run's seed, the round and the method. So the
    sample depends only on the seed and the round.
    """

    State = FederatedState
    state: FederatedState

    def __init__(
        self,
        strategy: Strategy,
        codecs: Codecs = NO_CODECS,
        screening: Screening | None = None,
        objective: Objective | None = None,
    ) -> None:
        super().__init__(strategy)
        metrics = {"train": TRAINED, EVALUATE: (LOSS, EXAMPLES)}
        bounds = {} if objective is None else objective.bounds
        sums = {} if objective is None else {EVALUATE: partial(objective.defined, samples=1)}
        self._replies = ReplyRules(codecs.uplink, metrics=metrics, bounds=bounds, sums=sums)
        self._codecs, self._screening, self._objective = codecs, screening, objective

    @property
    def failed_nodes(self) -> dict[int, FailedNode]:
        """The nodes whose replies could not all be used."""
        return self.state.grid.failures.failed_nodes

    def save(self) -> bytes:
        """Return the state as bytes.

        Raises `TypeError` with a one-line message for an attribute that cannot be serialized.
        """
        self.state.kept = [attributes_of(each) for each in wrapped(self.strategy)]
        return super().save()

    def load(self, data: bytes) -> None:
        """Set the state, and the attributes of the strategy, to saved ones; see `RunStrategy`."""
        super().load(data)
        for strategy, kept in zip(wrapped(self.strategy), self.state.kept, strict=True):
            for name, value in kept.items():
                setattr(strategy, name, value)

    def abandon(self, back: Collection[int] = ()) -> None:
        """Record that the states of nodes outside `back` may be newer than the server's state.

        Between two rounds there are no unanswered messages to delete.
        """
        self.state.grid.session.go_back(back)

    def _train(self, run: Started) -> None:
        """Run the strategy's rounds with a flat model."""
        initial, state, codecs = self.initial or NONE, self.state, self._codecs
        self._layout = layout_of(run.arrays)  # `StatisticsAveraging` takes it
        compressed = CompressedGrid(
            run.grid,
            downlink=codecs.downlink,
            seed=codecs.seed,
            screening=self._screening,
            replies=self._replies,
            failures=FailureLimits(few=MAX_CONSECUTIVE_FAILURES),
            model=InitialModel.of(
                self._layout, run.arrays, self.initial, from_seed=codecs.from_seed
            ),
            traffic=self.traffic,
            state=state.grid,
            compact_records=codecs.compact_records,
        )
        if not run.goes_on:
            flat = flat_record(to_vector(run.arrays))
            state.arrays = with_natives(flat, initial.arrays)
            self._evaluate(run, 0, run.rounds, state.arrays)
        while state.round < run.rounds:
            self._round(compressed, run)
            self._evaluate(run, state.round, run.rounds, state.arrays)
            self.on_state_complete()
        compressed.end()

    def _round(self, compressed: CompressedGrid, run: Started) -> None:
        """Run one round, with its parts in the order of Flower's `Strategy.start`."""
        result, timeout = run.result, run.timeout
        number, arrays = self.state.round + 1, self.state.arrays
        asked = number, arrays, run.train_config, compressed
        messages = self._drawn("train", self.configure_train, *asked)
        replies = compressed.send_and_receive(messages, timeout=timeout)
        found, metrics = self.aggregate_train(number, replies)
        if found is not None:
            result.arrays = arrays = found
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        asked = number, arrays, run.evaluate_config, compressed
        messages = self._drawn("evaluate", self.configure_evaluate, *asked)
        replies = compressed.send_and_receive(messages, timeout=timeout)
        if (measured := self.aggregate_evaluate(number, replies)) is not None:
            result.evaluate_metrics_clientapp[number] = measured
        self.state.round, self.state.arrays = number, arrays

    def _drawn(
        self, what: str, configure: Callable[..., Iterable[Message]], number: int, *arguments: Any
    ) -> list[Message]:
        """Return the messages of a method of the strategy, which gets the round's own draws."""
        with global_random(f"{self._codecs.seed} {number} {what}"):
            return list(configure(number, *arguments))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate, and store the nodes' training metrics."""
        if isinstance(self.strategy, QFedAvg):
            replies = level(list(replies))
        with global_random(f"{self._codecs.seed} {server_round} aggregate_train"):
            found = super().aggregate_train(server_round, replies)
        self.state.train_metrics = found[1]
        return found

    def _mix(
        self, reports: list[dict[str, Array]], weights: list[float], nodes: list[int]
    ) -> dict[str, Array]:
        """Average the hidden tensors by name, some of them over all nodes (`NodeMeans`)."""
        means = NodeMeans((self.initial or NONE).vectors, self.state.weights)
        own = [{n: values_of_array(r.pop(n)) for n in means.names} for r in reports]
        mixed = super()._mix(reports, weights, nodes)
        if means.names:
            used = [means.weight_of(*each) for each in zip(nodes, weights, strict=True)]
            found = {name: mean([each[name] for each in own], used) for name in means.names}
            now, new = natives_of(self.state.arrays), dict(zip(nodes, weights, strict=True))
            mixed |= {n: FlatArray(a) for n, a in means.update(now, found, new).items()}
        return mixed

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the nodes' sums, and store them and the metrics that they define."""
        keys, samples = take_keys(replies := list(replies))
        with global_random(f"{self._codecs.seed} {server_round} aggregate_evaluate"):
            found = super().aggregate_evaluate(server_round, replies)
        if found is not None and self._objective is not None:
            self.evaluated, found = evaluated(found, samples, keys, self._objective)
        self.evaluate_metrics = found
        return found


def attributes_of(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy's attributes, without functions, classes and wrapped strategies.

    Raises `TypeError` for an attribute that cannot be serialized.
    """
    found = {name: value for name, value in vars(strategy).items() if not _is_rule(value)}
    for name, value in found.items():
        try:
            expect_savable(value)
        except TypeError as error:
            raise TypeError(f"{type(strategy).__name__}.{name}: {error}") from error
    return found


def _is_rule(value: Any) -> bool:
    """Return whether a value is code or a wrapped strategy, which is not part of a state."""
    if isinstance(value, partial):
        return _is_rule(value.func)
    return isroutine(value) or isinstance(value, type | Strategy)
