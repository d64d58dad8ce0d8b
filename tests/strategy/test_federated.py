"""Flower's strategies, a round at a time: what their own `start` does, and from a state on."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy

from compression.flower import to_vector
from conf.build import data_of, model_of
from conf.load import run_config
from simulation.grid import LocalGrid
from simulation.host import HostSpec
from simulation.workers import make_pool
from strategy.federated import Federated
from strategy.nodes import OrderedGrid
from strategy.state import StateError
from task.flat import FlatModel
from tests.runs import composed, configured

WORDS = ["algorithm=fedavg", "nodes=3", "local_steps=1", "batch_size=8", "dataset.holdout=0.3"]


class Theirs(Federated):
    """Goes by the loop of Flower's own `start`, over the very link."""

    def _round(self, link, timeout, train_config, evaluate_config, result):
        if self.done:
            return
        whole = Strategy.start(
            self, link, self._state.arrays.value, 4, timeout, train_config, evaluate_config
        )
        vars(result).update(vars(whole))
        self._state.round = 4


def grid():
    values = run_config(composed(*WORDS))
    return OrderedGrid(LocalGrid(make_pool(HostSpec("client.app:app", 3, 1, values), 1), 3))


def initial():
    config = configured(*WORDS)
    return ArrayRecord(FlatModel(model_of(config, data_of(config))).state_dict())


def trained(kind, strategy, rounds=4):
    made = kind(strategy, None, seed=1)
    config = ConfigRecord({"lr": 0.1})
    return made, made.start(grid(), initial(), rounds, train_config=config)


def metrics_of(found):
    """Return metrics, without what nodes measured in real seconds."""
    return {
        number: {name: value for name, value in record.items() if name != "seconds"}
        for number, record in found.items()
    }


@pytest.mark.parametrize("kind", [FedAvg, FedAdam])
def test_the_rounds_are_those_of_flowers_own_start(kind):
    ours, found = trained(Federated, kind(fraction_train=0.7))
    theirs, expected = trained(Theirs, kind(fraction_train=0.7))
    np.testing.assert_array_equal(to_vector(found.arrays), to_vector(expected.arrays))
    assert sorted(found.train_metrics_clientapp) == [1, 2, 3, 4]
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert metrics_of(getattr(found, name)) == metrics_of(getattr(expected, name))
    assert ours.traffic == theirs.traffic


def test_models_are_handed_over_before_the_first_round_and_after_each():
    made, seen, turns = Federated(FedAvg(), None, seed=1), [], []

    def measure(number, arrays):
        seen.append((number, made.done))
        return MetricRecord({"accuracy": number / 10})

    made.after_turn = lambda: turns.append(made.done)
    found = made.start(
        grid(), initial(), 2, train_config=ConfigRecord({"lr": 0.1}), evaluate_fn=measure
    )
    assert seen == [(0, 0), (1, 1), (2, 2)]
    assert turns == [1, 2]
    assert sorted(found.evaluate_metrics_serverapp) == [0, 1, 2]


def test_a_state_is_of_one_strategy_alone():
    saved = Federated(FedAvgM(), None, seed=1).save()
    Federated(FedAvgM(), None, seed=1).load(saved)
    with pytest.raises(StateError, match="of a strategy with strategy=FedAvgM"):
        Federated(FedAvg(), None, seed=1).load(saved)


def test_what_a_strategy_keeps_that_cannot_be_kept_is_named():
    strategy = FedAvg()
    strategy.accountant = object()
    with pytest.raises(
        TypeError, match=r"FedAvg\.accountant: a state cannot hold builtins\.object"
    ):
        Federated(strategy, None, seed=1).save()
