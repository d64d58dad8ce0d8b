"""Makes the strategy that a YAML file in conf/strategy/ names; new strategies need no code here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import QFedAvg, Result, Strategy

from edgewire.compression.batchnorm import expect_matches
from edgewire.compression.flower import Traffic
from edgewire.compression.flower.native_tensors import Initial
from edgewire.compression.flower.server.failure_policy import FailedNode
from edgewire.compression.flower.server.statistics_averaging import ROBUST
from edgewire.compression.layout import Layout
from edgewire.conf.build import local_of, objective_of, strategy_of
from edgewire.conf.codecs import codec_of, downlink_of, gradients_of
from edgewire.conf.schema import Config, ConfigError
from edgewire.pipeline.server.strategy import PipelineStrategy
from edgewire.strategy.base import Codecs, ParameterServer
from edgewire.strategy.federated import Federated
from edgewire.strategy.flower_checks import expect_limits
from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError


class CountedStrategy(Protocol):
    """A strategy that counts the bytes that cross the network.

    `initial`: the native tensors. These are sent in their own dtype, and are not in the flat model
    that `start` gets (`compression/flower/native_tensors.py`).
    """

    initial: Initial | None

    @property
    def traffic(self) -> Traffic:
        """The counters of bytes and messages so far."""

    @property
    def failed_nodes(self) -> Mapping[int, FailedNode]:
        """The nodes whose replies could not all be used."""

    @property
    def train_metrics(self) -> Mapping[str, Any] | None:
        """The nodes' training metrics of the last round; None if no node replied."""

    @property
    def evaluate_metrics(self) -> Mapping[str, Any] | None:
        """The metrics of the last round's evaluation at the nodes; None if there was none."""

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
        """Run all rounds, like Flower's `Strategy.start`; `evaluate_fn` gets a flat model."""


class Checked(CountedStrategy, Protocol):
    """One of EdgeWire's strategies, which checks the configuration itself."""

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError` with a one-line message for options that this strategy lacks."""


def scheme_for(config: Config, data: Data) -> CountedStrategy:
    """Return the configured strategy for a data set; a pipeline strategy also cuts its model.

    Raises the errors of `scheme_of`. Raises `ConfigError` or `TaskError` for a model that cannot be
    cut as configured. Raises `ConfigError` for a strategy that needs data at a server without data.
    """
    scheme = scheme_of(config)
    if not len(data.train):
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
    """Return whether the strategy asks the nodes to evaluate the model."""
    return isinstance(scheme, Federated) and scheme.evaluates


def _expect_without_data(scheme: CountedStrategy, config: Config) -> None:
    """Raise `ConfigError` for a strategy that needs samples, at a server without samples."""
    if isinstance(scheme, PipelineStrategy):
        raise ConfigError(
            "no data at the server, which cuts a model by them: put some into its own data "
            "folder, and give dataset.root=, or choose a strategy that does not cut"
        )
    if asks_nodes(scheme) and not config.dataset.holdout:
        raise ConfigError(
            "no data at the server to test on, and none that nodes hold back: give "
            "dataset.holdout=0.2, say, a share of each node's own"
        )


def scheme_of(config: Config) -> CountedStrategy:
    """Return the configured strategy.

    Raises `ConfigError` for unknown options, and for combinations that the strategy does not
    support. A strategy with `_partial_` in its YAML file is one of EdgeWire's. It compresses
    messages itself, and gets the codecs and the seed here. All other strategies are Flower's or a
    user's.
    """
    made = strategy_of(config)
    _expect_local(config, made)
    downlink = downlink_of(config)
    if isinstance(made, Strategy):
        expect_limits(made, config)
        objective = objective_of(config)
        if isinstance(made, QFedAvg) and objective.least < 0:
            raise ConfigError(
                "strategy=qfedavg weights nodes by their losses, which must not be below 0; "
                f"those of {type(objective).__name__} may be"
            )
        uplink, from_seed = codec_of(config), config.downlink.from_seed
        _expect_receivers(Codecs(uplink, downlink), made, config)
        return Federated(
            made,
            downlink,
            config.seed,
            uplink,
            config.screen,
            objective,
            from_seed=from_seed,
            compact_records=config.compact_records,
        )
    codecs = Codecs(
        codec_of(config),
        downlink,
        config.seed,
        config.downlink.from_seed,
        config.compact_records,
    )
    scheme: Checked = made(codecs=codecs)
    if isinstance(scheme, ParameterServer):
        scheme.screening = config.screen
    if not hasattr(scheme, "check_config"):
        raise ConfigError(
            f"{type(scheme).__name__} has no check_config(config): a strategy whose file says "
            "_partial_: true needs it"
        )
    scheme.check_config(config)
    if config.compact_records and not getattr(scheme, "sends_models", True):
        raise ConfigError(
            "compact_records=true is for messages with models: give compact_records=false with a "
            "model that is cut over nodes"
        )
    _expect_receivers(codecs, scheme, config)
    return scheme


def _expect_receivers(codecs: Codecs, strategy: object, config: Config) -> None:
    """Raise `ConfigError` for a method that is wrong for what receives its payloads.

    With strategy.follow=steps the downlink's payloads are updates, otherwise differences of models.
    """
    known = getattr(strategy, "knows_context", False)
    steps = getattr(strategy, "follow", "") == "steps"
    optimizer = getattr(strategy, "optimizer", None)
    momentum = getattr(optimizer, "momentum", 0) or getattr(optimizer, "sends_momentum", False)
    sums = getattr(optimizer, "incremental", False)
    gradients = getattr(strategy, "update", "") == "gradient" and not (momentum or sums)
    updates = "gradients" if gradients else "models"
    for group, codec, receiver in (
        ("compression", codecs.uplink, "sums" if sums else updates),
        ("downlink", codecs.downlink, updates if steps else "differences"),
        ("gradients", gradients_of(config), "gradients"),
    ):
        try:
            if codec is not None:
                codec.expect_receiver(receiver, contextual=known and group != "gradients")
        except ValueError as error:
            raise ConfigError(f"{group}: {error}") from error
    downlink = codecs.downlink
    if codecs.contextual and (downlink is None or (downlink.exact and not steps)):
        raise ConfigError(
            "coder=context is for a downlink that sends changes, because they make the context: "
            "choose one such as downlink=topk, or give compression.coder=entropy "
            "downlink.coder=entropy"
        )


def _expect_local(config: Config, made: object) -> None:
    """Raise `ConfigError` for a local algorithm that does not go with the strategy `made`."""
    local = local_of(config)
    try:
        local.check_strategy(config.strategy)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    robust = isinstance(made, ROBUST) or config.strategy.get("mean", "mean") != "mean"
    if robust and local.over_all_nodes:
        raise ConfigError(
            f"local={type(local).__name__.lower()} adds up changes of which the nodes' mean is "
            "needed, and a robust strategy takes no mean: give local=plain, or another strategy"
        )


def expect_named(config: Config, layout: Layout) -> None:
    """Raise `ConfigError` for an `exact=` pattern that matches none of a model's tensors."""
    for group, codec in (("compression", codec_of(config)), ("downlink", downlink_of(config))):
        try:
            expect_matches(layout, codec.exact_names if codec else ())
        except ValueError as error:
            raise ConfigError(f"{group}.{error}") from error
