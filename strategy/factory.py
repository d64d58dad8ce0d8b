"""The configured scheme: one of ours, or one of Flower's strategies over a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from compression import Layout
from compression.batchnorm import expect_matches
from compression.flower import Traffic
from compression.flower.native_tensors import Initial
from compression.flower.server.update_filter import Screening
from conf import Config, ConfigError
from conf.build import strategy_of
from conf.codecs import codec_of, downlink_of, gradients_of
from strategy.base import ParameterServer
from strategy.federated import Federated
from strategy.flower_checks import expect_limits
from strategy.pipeline.strategy import PipelineStrategy
from task.datasets import Data
from task.errors import TaskError


def screening_of(config: Config) -> Screening:
    """Return the configured screening."""
    return Screening(**vars(config.screen))


class CountedStrategy(Protocol):
    """A strategy that counts what crosses the network, whatever it does.

    `initial`: the tensors beside the flat model (`compression/flower/native_tensors.py`), which
    `start` is not given.
    """

    initial: Initial | None

    @property
    def traffic(self) -> Traffic:
        """What has crossed it so far."""

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


class Checked(CountedStrategy, Protocol):
    """A scheme of ours: it says itself what it does not go with."""

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError`, one line, for what of a run's configuration does not go with it."""


def scheme_for(config: Config, data: Data) -> CountedStrategy:
    """Return the configured scheme for a learning problem: one that cuts the model has cut it.

    Raises `ConfigError` as `scheme_of`, `ConfigError` or `TaskError` for a model or cuts that do
    not go.
    """
    scheme = scheme_of(config)
    if not len(data.train.labels):
        _expect_without_data(scheme, config)
    gradients = gradients_of(config)
    if not isinstance(scheme, PipelineStrategy):
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


def asks_nodes(scheme: CountedStrategy) -> bool:
    """Return whether the nodes, too, measure the model: some of Flower's strategies let them."""
    return isinstance(scheme, Federated) and scheme.evaluates


def _expect_without_data(scheme: CountedStrategy, config: Config) -> None:
    """Raise `ConfigError` for what needs samples at a server that has none."""
    if isinstance(scheme, PipelineStrategy):
        raise ConfigError(
            "no photos at the server, which cuts a model by the data: put photos into its own "
            "folder, and give dataset.root=, or choose a strategy that does not cut"
        )
    if asks_nodes(scheme) and not config.dataset.holdout:
        raise ConfigError(
            "no photos at the server to test on, and none that nodes hold back: give "
            "dataset.holdout=0.2, say, a share of each node's own"
        )


def scheme_of(config: Config) -> CountedStrategy:
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
