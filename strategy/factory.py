"""Makes the strategy that a YAML file in conf/strategy/ names; new strategies need no code here."""

from functools import partial
from typing import cast

from flwr.serverapp.strategy import Strategy

from edgewire.compression.batchnorm import expect_matches
from edgewire.compression.layout import Layout
from edgewire.conf.build import local_of, objective_of
from edgewire.conf.check import build, codec_of, codecs_of
from edgewire.conf.privacy import NODE
from edgewire.conf.rules import Choice, check, evaluates
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.base import ParameterServer, RunStrategy
from edgewire.strategy.federated import Federated
from edgewire.strategy.privacy.rounds import NoisyRounds
from edgewire.strategy.secure.rounds import SecureRounds
from edgewire.strategy.synchronous import SparseAveraging
from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError


def made(config: Config, data: Data | None = None) -> RunStrategy:
    """Return the configured strategy; with `data` it is also fitted to them (`fit`).

    A strategy with `_partial_` in its YAML file is one of EdgeWire's. It compresses messages
    itself, and gets the codecs and the seed here. All other strategies are Flower's or a user's.
    Raises `ConfigError` for unknown options, and for refused combinations (`edgewire.conf.rules`).
    """
    strategy = build("strategy", config.strategy)
    local, objective = local_of(config), objective_of(config)
    try:
        local.check_strategy(config.strategy)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    codecs = codecs_of(config)
    if not isinstance(strategy, Strategy):
        strategy = strategy(codecs=codecs)
    check(Choice(config, strategy, codecs, codec_of(config, "gradients"), local, objective))
    if config.strategy.get("_partial_"):
        if isinstance(strategy, ParameterServer):
            strategy.screening, strategy.secure = config.screen, config.secure
            strategy.objective, strategy.eval_every = objective, config.eval_every
        if config.secure.mode != "none":
            cast(SparseAveraging, strategy).rounds = SecureRounds
        if config.privacy.unit == NODE:
            noisy = partial(NoisyRounds, privacy=config.privacy, nodes=config.nodes)
            cast(SparseAveraging, strategy).rounds = noisy
        scheme = cast(RunStrategy, strategy)
    else:
        scheme = Federated(strategy, codecs, config.screen, objective)
    if data is not None:
        fit(scheme, config, data)
    return scheme


def fit(scheme: RunStrategy, config: Config, data: Data) -> None:
    """Cut the model of a strategy that divides it among nodes (`cut`), for a data set.

    Raises `ConfigError` or `TaskError` for a model that cannot be cut as configured, and
    `ConfigError` for a strategy that needs samples, at a server without samples.
    """
    cut = getattr(type(scheme), "cut", None)
    if not len(data.train):
        if cut is not None:
            raise ConfigError(
                "no data at the server, which cuts a model by them: put some into its own data "
                "folder, and give dataset.root=, or choose a strategy that does not cut"
            )
        if asks_nodes(scheme) and not config.dataset.holdout:
            raise ConfigError(
                "no data at the server to test on, and none that nodes hold back: give "
                "dataset.holdout=0.2, say, a share of each node's own"
            )
    if cut is not None:
        try:
            cut(scheme, config, data)
        except TaskError:
            raise
        except ValueError as error:
            raise ConfigError(f"strategy: {error}") from error


def asks_nodes(scheme: RunStrategy) -> bool:
    """Return whether the strategy asks the nodes to evaluate the model."""
    return evaluates(scheme)


def expect_named(config: Config, layout: Layout) -> None:
    """Raise `ConfigError` for an `exact=` pattern that matches none of a model's tensors."""
    codecs = codecs_of(config)
    for group, codec in (("compression", codecs.uplink), ("downlink", codecs.downlink)):
        try:
            expect_matches(layout, codec.exact_names if codec else ())
        except ValueError as error:
            raise ConfigError(f"{group}.{error}") from error
