"""The project's loop over rounds runs Flower's strategies with the results of Flower's `start`.

Unlike Flower's `start`, the loop can resume from a saved state.
"""

import random
from functools import partial

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from edgewire.compression.flower import (
    CompressedGrid,
    ReplyRules,
    StatisticsAveraging,
    flat_record,
    layout_of,
    to_vector,
)
from edgewire.compression.flower.server.session import InitialModel
from edgewire.compression.flower.traffic import flower_bytes
from edgewire.conf.build import data_of, model_of
from edgewire.conf.check import Codecs
from edgewire.conf.load import run_config
from edgewire.strategy.federated import TRAINED, Federated
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.task.flat_model import FlatModel
from edgewire.task.objectives.classification import Classification
from tests.grids import grid_of
from tests.runs import composed, configured

SUMS = {"evaluate": partial(Classification().defined, samples=1)}
WORDS = ["algorithm=fedavg", "nodes=3", "local_steps=1", "batch_size=8", "dataset.holdout=0.3"]


class Theirs(StatisticsAveraging):
    """A strategy for Flower's `start`, with the same random seeds as the project's loop."""

    def configure_train(self, server_round, arrays, config, grid):
        random.seed(f"1 {server_round} train")
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(self, server_round, arrays, config, grid):
        random.seed(f"1 {server_round} evaluate")
        return super().configure_evaluate(server_round, arrays, config, grid)


def grid():
    return OrderedGrid(grid_of(run_config=run_config(composed(*WORDS))))


def initial():
    config = configured(*WORDS)
    return ArrayRecord(FlatModel(model_of(config, data_of(config))).state_dict())


def metrics_of(found):
    """Return metrics without the nodes' values in real seconds."""
    return {
        number: {name: value for name, value in record.items() if name != "seconds"}
        for number, record in found.items()
    }


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAvgM])
def test_the_rounds_are_those_of_flowers_own_start(kind):
    arrays, config = initial(), ConfigRecord({"lr": 0.1})
    layout, size = layout_of(arrays), flower_bytes(arrays)
    ours = Federated(kind(fraction_train=0.7), Codecs(seed=1), objective=Classification())
    found = ours.start(grid(), arrays, 4, train_config=config)
    compressed = CompressedGrid(
        grid(),
        model=InitialModel(layout, size),
        replies=ReplyRules(metrics={"train": TRAINED}, sums=SUMS),
    )
    theirs = Theirs(kind(fraction_train=0.7), layout=layout)
    expected = theirs.start(compressed, flat_record(to_vector(arrays)), 4, train_config=config)
    np.testing.assert_array_equal(to_vector(found.arrays), to_vector(expected.arrays))
    assert sorted(found.train_metrics_clientapp) == [1, 2, 3, 4]
    of_training = "train_metrics_clientapp"
    assert metrics_of(getattr(found, of_training)) == metrics_of(getattr(expected, of_training))
    for number, means in metrics_of(expected.evaluate_metrics_clientapp).items():
        del means["confusion"]  # Flower's own average of it
        assert dict(found.evaluate_metrics_clientapp[number]) == pytest.approx(means)
    assert ours.traffic == compressed.traffic


def test_models_are_recorded_before_the_first_round_and_after_each():
    made, seen, turns = Federated(FedAvg(), Codecs(seed=1)), [], []

    def measure(number, arrays):
        seen.append((number, made.done))
        return MetricRecord({"accuracy": number / 10})

    made.on_state_complete = lambda: turns.append(made.done)
    found = made.start(
        grid(), initial(), 2, train_config=ConfigRecord({"lr": 0.1}), evaluate_fn=measure
    )
    assert seen == [(0, 0), (1, 1), (2, 2)]
    assert turns == [1, 2]
    assert sorted(found.evaluate_metrics_serverapp) == [0, 1, 2]


class Drawing(FedAvg):
    """A strategy of a user's own that draws while it aggregates."""

    def aggregate_train(self, server_round, replies):
        self.drawn = random.random()
        return super().aggregate_train(server_round, replies)


def test_the_global_generator_is_as_before_and_the_draws_depend_on_the_seed_alone():
    found = []
    for before in (5, 6):
        random.seed(before)
        state = random.getstate()
        own = Drawing(fraction_train=0.7)
        ours = Federated(own, Codecs(seed=1), objective=Classification())
        ours.start(grid(), initial(), num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))
        assert random.getstate() == state
        found.append(own.drawn)
    assert found[0] == found[1]
