"""A model's random numbers depend only on the seed, the node and the message's number.

Neither the process nor the order of the messages has an effect.
"""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edgewire.client.node import Node
from edgewire.client.training import Trainer
from edgewire.compression.flower.headers import TrainConfig
from edgewire.task.models.parts import MODELS
from edgewire.task.rng import IsolatedRng
from tests.runs import configured

NODES = 4


class Functional(nn.Module):
    """A model that calls functional dropout, also in eval mode; it has no dropout module."""

    def __init__(self, features, classes):
        super().__init__()
        self.inner, self.outer = nn.Linear(features, 12), nn.Linear(12, classes)
        self.masks = []

    def forward(self, x):
        self.masks.append(F.dropout(torch.ones(64), 0.5).numpy().tobytes())
        return self.outer(F.dropout(torch.relu(self.inner(x.flatten(1))), 0.5))


class Recurrent(nn.Module):
    """A model with an LSTM of two layers over an image's rows, with dropout between the layers."""

    def __init__(self, features, classes):
        super().__init__()
        self.lstm = nn.LSTM(features, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.outer = nn.Linear(8, classes)

    def forward(self, x):
        return self.outer(self.lstm(x.flatten(1, 2))[0][:, -1])


@pytest.fixture(autouse=True)
def models(monkeypatch):
    made = {
        "functional": lambda channels, size, classes: Functional(channels * size**2, classes),
        "recurrent": lambda channels, size, classes: Recurrent(size, classes),
    }
    for name, make in made.items():
        monkeypatch.setitem(MODELS, name, make)


def words(model, *more):
    return [f"model.name={model}", f"nodes={NODES}", "local_steps=2", *more]


def trainer(*more):
    return Trainer(configured(*words(*more)))


def asked(t, node, number):
    """Train, compute a gradient and evaluate on a node; return the three results."""
    place, start = Node(node, NODES), np.linspace(-1, 1, t.layout.size, dtype=np.float32)
    trained = t.train(place, start, TrainConfig(0.1, number))[0].tobytes()
    return trained, t.gradient(place, start, number=number)[0].tobytes(), t.evaluate(place, start)


@pytest.mark.parametrize("model", ["functional", "recurrent"])
def test_a_node_draws_the_same_after_any_other(model):
    one, other = trainer(model), trainer(model)
    torch.manual_seed(1)
    first = asked(one, 0, 1)
    torch.manual_seed(2)
    assert asked(other, 1, 1) != first
    assert asked(other, 0, 1) == first


def test_every_node_round_and_seed_has_different_masks():
    masks = []
    for t, node, number in [
        *((trainer("functional", f"seed={seed}"), 0, 1) for seed in (0, 1)),
        *((trainer("functional"), node, number) for node, number in [(1, 1), (0, 2)]),
    ]:
        asked(t, node, number)
        trained, gradients = t.flat.module.masks[:2], t.flat.module.masks[2:3]
        masks += trained
        assert gradients == trained[:1]  # both use the round's random numbers
    assert len(set(masks)) == len(masks) == 8


def test_the_processs_own_random_states_are_unchanged():
    cpu = torch.device("cpu")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with contextlib.suppress(RuntimeError), IsolatedRng(cpu, 7):
        own = torch.rand(3)
        raise RuntimeError("halfway")
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    with IsolatedRng(cpu, 7):
        torch.testing.assert_close(torch.rand(3), own, rtol=0, atol=0)


def test_a_devices_own_generator_is_set_and_put_back(monkeypatch):
    """Fake generators of two devices stand for devices that this machine does not have."""
    generators = {62: torch.Generator(), 63: torch.Generator()}
    kind = SimpleNamespace(default_generators=generators)
    monkeypatch.setattr(torch, "get_device_module", lambda device: kind)
    before = {n: torch.rand(1, generator=g.clone_state()) for n, g in generators.items()}
    with IsolatedRng(torch.device("cuda:63"), 7):
        own = torch.rand(1, generator=generators[63])
        torch.testing.assert_close(torch.rand(1), own, rtol=0, atol=0)
    for n, generator in generators.items():
        assert torch.rand(1, generator=generator) == before[n]
