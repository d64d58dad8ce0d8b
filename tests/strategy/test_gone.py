"""Nodes return under new ids; the server forgets what it stored for the old ids."""

from dataclasses import fields, is_dataclass

import pytest

from edgewire.compression.make import make_codec
from edgewire.conf.network import Network
from edgewire.strategy.ordered_grid import OrderedGrid
from tests.applied import CODECS
from tests.strategy.federation import MOMENTUM, Federation, Trainer
from tests.strategy.renewed import Renewed

METHODS = {"esgd": CODECS["esgd"], "topk": CODECS["topk-int8"], "f2i": {"quantizer": "int8"}}
BOUND = 25  # above twice the four nodes, plus five spare ids, plus two model versions for each node


def sizes(state, name="state"):
    """Return the number of elements in every container of a state."""
    found = {}
    for each in fields(state):
        value = getattr(state, each.name)
        if is_dataclass(value):
            found |= sizes(value, f"{name}.{each.name}")
        elif isinstance(value, dict | set | list):
            found[f"{name}.{each.name}"] = len(value)
    return found


@pytest.fixture(autouse=True)
def few_to_spare(monkeypatch):
    monkeypatch.setattr("edgewire.compression.flower.server.session.SPARE", 5)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
def test_synchronous_servers_forget_absent_nodes(method):
    federation = Federation(Trainer(optimizer=MOMENTUM, **METHODS[method]))
    federation.grid = OrderedGrid(grid := Renewed(federation.grid, share=0.1))
    strategy = federation.run(rounds=200, timeout=5)
    assert grid.ids > 90
    found = sizes(strategy.state)
    assert found["state.screens.vectors.norms"] > 0
    assert max(found.values()) <= BOUND, found
    assert strategy.traffic.client_updates > 400


@pytest.mark.few(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("downlink", [None, make_codec(quantizer="int8")])
def test_asynchronous_servers_forget_absent_nodes(method, downlink):
    federation = Federation(Trainer(**METHODS[method]), Network(seconds_per_step=1))
    federation.grid = OrderedGrid(grid := Renewed(federation.grid, share=0.1))
    strategy = federation.push(400, timeout=20, downlink=downlink)
    assert grid.ids > 90
    found = sizes(strategy.state)
    assert max(found.values()) <= BOUND, found
    assert strategy.traffic.client_updates > 200
