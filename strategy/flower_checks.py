"""Refuses options that Flower's strategies would ignore, or with which they would wait forever."""

from __future__ import annotations

from flwr.serverapp.strategy import Bulyan, FedAvg, FedProx, MultiKrum, Strategy

from edgewire.compression.flower.server.statistics_averaging import wrapped
from edgewire.conf.schema import Config, ConfigError

# With f malicious nodes, the proof for Krum needs 2 f + 3 nodes (Blanchard et al. 2017, proposition
# 4.2), and the proof for Bulyan needs 4 f + 3 nodes (El Mhamdi et al. 2018, section 4).
KRUM, BULYAN, MORE = 2, 4, 3
LEAST = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")  # Flower waits for these


def expect_limits(strategy: Strategy, config: Config) -> None:
    """Raise `ConfigError` with a one-line message for options that Flower's strategy cannot use."""
    if config.network.crash or config.network.join_seconds:
        raise ConfigError(
            "network.crash and network.join_seconds need a strategy that stands them: "
            "strategy=asynchronous or sparse_averaging"
        )
    for each in wrapped(strategy):
        _expect_limits(each, config)


def _expect_limits(strategy: Strategy, config: Config) -> None:
    fedavg = isinstance(strategy, FedAvg)
    if isinstance(strategy, FedAvg):
        expect_trained(config.nodes, strategy.fraction_train, strategy.min_train_nodes)
        _expect_share("fraction_evaluate", strategy.fraction_evaluate)
    for name in LEAST:  # a user's strategy may have FedAvg's option names
        least = getattr(strategy, name, 0)
        if fedavg or (isinstance(least, int) and least > config.nodes):
            _expect_least(name, least, config.nodes)
    if isinstance(strategy, FedProx) and strategy.proximal_mu < 0:
        raise ConfigError(f"strategy.proximal_mu must be at least 0, not {strategy.proximal_mu:g}")
    if isinstance(strategy, MultiKrum):  # Krum is a subclass
        _expect_count("num_nodes_to_select", strategy.num_nodes_to_select, 1, config.nodes)
        _expect_tolerated(strategy, strategy.num_malicious_nodes, KRUM, config.nodes)
    if isinstance(strategy, Bulyan):
        _expect_tolerated(strategy, strategy.num_malicious_nodes, BULYAN, config.nodes)


def expect_trained(nodes: int, share: float, least: int) -> int:
    """Return how many of `nodes` nodes train in a round of FedAvg.

    `share`, `least`: the strategy's `fraction_train` and `min_train_nodes`. Raises `ConfigError` if
    no node would train, or if a number is out of range.
    """
    _expect_share("fraction_train", share)
    _expect_least("min_train_nodes", least, nodes)
    drawn = max(int(nodes * share), least) if share else 0
    if drawn < 1:
        raise ConfigError(
            f"not one of nodes={nodes} would train: give a larger strategy.fraction_train"
        )
    return drawn


def _expect_tolerated(strategy: FedAvg, malicious: int, times: int, nodes: int) -> None:
    """Raise `ConfigError` for more malicious nodes than the proof of the strategy allows.

    The proof needs `times` f + 3 nodes in a round, where f is the number `malicious`.
    """
    _expect_count("num_malicious_nodes", malicious, 0, nodes)
    drawn = expect_trained(nodes, strategy.fraction_train, strategy.min_train_nodes)
    needed = times * malicious + MORE
    if malicious and drawn < needed:
        raise ConfigError(
            f"strategy.num_malicious_nodes={malicious} needs {needed} nodes a round with "
            f"{type(strategy).__name__}, there are {drawn}"
        )


def _expect_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"strategy.{name} must be between 0 and 1, not {value:g}")


def _expect_least(name: str, value: int, nodes: int) -> None:
    if not 0 <= value <= nodes:
        raise ConfigError(f"strategy.{name} must be between 0 and nodes={nodes}, not {value}")


def _expect_count(name: str, value: int, low: int, nodes: int) -> None:
    if not low <= value <= nodes:
        raise ConfigError(f"strategy.{name} must be from {low} to {nodes}, not {value}")
