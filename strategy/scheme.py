"""The configured scheme: one of ours, or one of Flower's strategies over a link."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import QFedAvg, Result, Strategy

from compression import Codec, Layout
from compression.flower import Link, Sheltered, Traffic, flat_record, layout_of, to_vector
from compression.flower.notes import EXAMPLES, LOSS, SECONDS, STEPS
from compression.flower.screen import Screening
from compression.flower.traffic import flower_bytes
from compression.statistics import expect_matches
from conf import Config, ConfigError
from conf.build import codec_of, downlink_of, gradients_of, strategy_of
from strategy.limits import expect_limits
from strategy.segments import Segmented
from strategy.server import HOPELESS, ParameterServer
from task.datasets import Data
from task.errors import TaskError
from task.steps import Evaluation

DEFAULT = Screening()
METRICS = {  # of our ClientApp's replies
    "train": (LOSS, EXAMPLES, STEPS, SECONDS),
    "evaluate": (*Evaluation._fields, EXAMPLES),
}


def screening_of(config: Config) -> Screening:
    """Return the configured screening."""
    return Screening(**vars(config.screen))


class Scheme(Protocol):
    """A strategy that counts what crosses the network, whatever it does."""

    traffic: Traffic

    @property
    def train_metrics(self) -> Mapping[str, Any] | None:
        """The last round's, from the nodes; None if not one answered."""

    @property
    def evaluate_metrics(self) -> Mapping[str, Any] | None:
        """The last round's, from the nodes' own evaluation; None if there was none."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, as Flower's `Strategy.start`; arrays for `evaluate_fn` are flat."""


class Checked(Scheme, Protocol):
    """A scheme of ours: it says itself what it does not go with."""

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError`, one line, for what of a run's configuration does not go with it."""


def scheme_for(config: Config, data: Data) -> Scheme:
    """Return the configured scheme for a learning problem: one that cuts the model has cut it.

    Raises `ConfigError` as `scheme_of`, `ConfigError` or `TaskError` for a model or cuts that do
    not go.
    """
    scheme = scheme_of(config)
    gradients = gradients_of(config)
    if not isinstance(scheme, Segmented):
        if not gradients.exact:
            raise ConfigError(
                "gradients= is for activations' gradients, of a model that is cut over nodes: "
                "it goes with strategy=synthetic_gradients or split_backprop"
            )
    else:
        try:
            scheme.cut(config, data)
        except TaskError:
            raise
        except ValueError as error:
            raise ConfigError(f"strategy: {error}") from error
    return scheme


def scheme_of(config: Config) -> Scheme:
    """Return the configured scheme. Raises `ConfigError` for what it does not take, or go with.

    A strategy of ours is named with `_partial_`: it does its own compression, and gets what it
    needs for that here. Any other is one of Flower's.
    """
    made = strategy_of(config)
    downlink = downlink_of(config)
    if isinstance(made, Strategy):
        expect_limits(made, config)
        return Federated(made, downlink, config.seed, codec_of(config), screening_of(config))
    scheme: Checked = made(uplink=codec_of(config), downlink=downlink, seed=config.seed)
    if isinstance(scheme, ParameterServer):
        scheme.screening = screening_of(config)
    scheme.check_config(config)
    return scheme


def expect_named(config: Config, layout: Layout) -> None:
    """Raise `ConfigError` for an `exact=` that names none of a model's tensors."""
    for group, codec in (("compression", codec_of(config)), ("downlink", downlink_of(config))):
        try:
            expect_matches(layout, codec.exact_names if codec else ())
        except ValueError as error:
            raise ConfigError(f"{group}.{error}") from error


LEVEL = 10.0  # times the median of a round's losses, or as small a part of it


def level(replies: list[Message]) -> list[Message]:
    """Return replies whose losses are within `LEVEL` of the median, for who weighs by them.

    q-FedAvg takes a step as short as the smallest loss makes it: a loss of 0 stops the model.
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


class Federated(Sheltered):
    """Any of Flower's strategies over a link, its draws from (seed, round) alone.

    Flower's strategies sample nodes with Python's global generator, which other threads of a
    process use too: it is set anew right before each round draws.
    """

    def __init__(
        self,
        strategy: Strategy,
        downlink: Codec | None,
        seed: int,
        uplink: Codec | None = None,
        screening: Screening = DEFAULT,
    ) -> None:
        super().__init__(strategy)
        self._uplink, self._downlink, self._seed = uplink, downlink, seed
        self._screening = screening
        self.traffic = Traffic()
        self.train_metrics: MetricRecord | None = None  # the last round's, from the nodes
        self.evaluate_metrics: MetricRecord | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the strategy's rounds; arguments and result as `Strategy.start`, arrays flat."""
        self._layout = layout_of(initial_arrays)
        link = Link(
            grid,
            downlink=self._downlink,
            seed=self._seed,
            few=HOPELESS,
            uplink=self._uplink,
            screening=self._screening,
            metrics=METRICS,
            layout=self._layout,
            plain_bytes=flower_bytes(initial_arrays),
            traffic=self.traffic,
        )
        arrays = flat_record(to_vector(initial_arrays))
        configs = train_config, evaluate_config
        result = super().start(link, arrays, num_rounds, timeout, *configs, evaluate_fn)
        link.end()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure training after setting the generator."""
        random.seed(f"{self._seed} {server_round} train")
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure evaluation after setting the generator."""
        random.seed(f"{self._seed} {server_round} evaluate")
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate, and keep what the nodes measured."""
        if isinstance(self.strategy, QFedAvg):
            replies = level(list(replies))
        arrays, self.train_metrics = super().aggregate_train(server_round, replies)
        return arrays, self.train_metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate, and keep what the nodes measured."""
        self.evaluate_metrics = super().aggregate_evaluate(server_round, replies)
        return self.evaluate_metrics
