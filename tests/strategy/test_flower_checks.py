"""Options with which a Flower strategy would fail silently or wait for ever are refused."""

import pytest
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    Krum,
    MultiKrum,
)
from hypothesis import given
from hypothesis import strategies as st

from edgewire.conf.network import Network
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.flower_checks import expect_limits, expect_trained

ALL = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def refused(strategy, **config):
    """Return the error line that refuses a strategy; None if it is accepted."""
    try:
        expect_limits(strategy, Config(**{"nodes": 10, **config}))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (FedAvg(fraction_train=2), "fraction_train must be between 0 and 1, not 2"),
        (FedAvg(fraction_evaluate=-0.5), "fraction_evaluate must be between 0 and 1, not -0.5"),
        (FedAvg(fraction_train=float("nan")), "fraction_train must be between 0 and 1, not nan"),
        (FedAvg(min_train_nodes=11), "min_train_nodes must be between 0 and nodes=10, not 11"),
        (FedAvg(min_evaluate_nodes=-1), "min_evaluate_nodes must be between 0 and nodes=10"),
        (FedAvg(min_available_nodes=11), "min_available_nodes must be between 0 and nodes=10"),
        (FedProx(proximal_mu=-1), "proximal_mu must be at least 0, not -1"),
        (MultiKrum(num_nodes_to_select=0), "num_nodes_to_select must be from 1 to 10, not 0"),
        (MultiKrum(num_nodes_to_select=11), "num_nodes_to_select must be from 1 to 10, not 11"),
        (Krum(num_malicious_nodes=-2), "num_malicious_nodes must be from 0 to 10, not -2"),
        (Bulyan(num_malicious_nodes=11), "num_malicious_nodes must be from 0 to 10, not 11"),
    ],
)
def test_impossible_numbers_are_named(strategy, line):
    assert refused(strategy).startswith(f"strategy.{line}")


def test_a_strategy_that_would_wait_for_more_nodes_than_there_are_is_refused():
    """A strategy that needs two nodes, Flower's default, is refused with one node."""
    assert refused(FedAvg(), nodes=1).endswith("nodes=1, not 2")
    assert refused(FedAvg(), nodes=2) is None
    assert refused(FedAvg(**ALL), nodes=1) is None


class Own(DifferentialPrivacyServerSideFixedClipping):
    """A strategy that is not derived from Flower's FedAvg."""

    def __init__(self, least):
        super().__init__(FedAvg(**ALL), 1.0, 1.0, 1)
        self.min_available_nodes = least


def test_wrapping_and_user_defined_strategies_are_refused_too():
    wrapping = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 1)
    assert refused(wrapping, nodes=1).endswith("nodes=1, not 2")
    assert refused(wrapping, nodes=2) is None
    assert refused(Own(11)).endswith("min_available_nodes must be between 0 and nodes=10, not 11")
    assert refused(Own(10)) is refused(Own(-1)) is refused(Own("all")) is None


@given(nodes=st.integers(1, 40), share=st.floats(0, 1), least=st.integers(0, 40))
def test_the_number_of_sampled_nodes_is_flowers(nodes, share, least):
    if least > nodes or not share or max(int(nodes * share), least) < 1:
        with pytest.raises(ConfigError, match=f"nodes={nodes}"):
            expect_trained(nodes, share, least)
    else:
        assert expect_trained(nodes, share, least) == max(int(nodes * share), least)


@pytest.mark.parametrize(("rule", "times"), [(Krum, 2), (MultiKrum, 2), (Bulyan, 4)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_rule_accepts_as_many_malicious_nodes_as_its_proof(rule, times, share):
    for nodes in (*range(1, 12), 24, 39):
        drawn = max(int(nodes * share), 1)
        most = max((drawn - 3) // times, 0)  # with 0 malicious nodes no run is refused
        lines = [
            refused(rule(num_malicious_nodes=n, fraction_train=share, **ALL), nodes=nodes)
            for n in range(nodes + 1)
        ]
        assert lines[: most + 1] == [None] * (most + 1)
        for malicious, line in list(enumerate(lines))[most + 1 :]:
            assert line == (
                f"strategy.num_malicious_nodes={malicious} needs {times * malicious + 3} nodes "
                f"a round with {rule.__name__}, there are {drawn}"
            )


@pytest.mark.parametrize("network", [{"crash": 0.1}, {"join_seconds": 3.0}])
def test_flower_strategies_refuse_networks_with_leaving_nodes(network):
    line = refused(FedAvg(), network=Network(**network))
    assert line.endswith("strategy=asynchronous or sparse_averaging")
