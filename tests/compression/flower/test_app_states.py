"""An app does not see the data of `CompressionMod` in its state, and may clear its state.

A node whose state is lost or is an old copy starts anew and logs this.
"""

import copy

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from edgewire.compression.decoder import decode_update
from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.node.state import NodeState
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from tests.applied import CODECS
from tests.compression.flower.apps import NODES, ask, moving, record_of, to_targets
from tests.compression.flower.federation import compressed_run
from tests.grids import grid_of


@pytest.mark.parametrize("options", [{"downlink": "int8"}, {}])
def test_an_app_does_not_see_the_mods_state_and_may_clear_its_own(options):
    seen = []

    def train(node, values, state):
        seen.append(sorted(state))
        state.clear()
        state["own"] = ConfigRecord({"x": 1})
        return to_targets(node, values, state)

    app = moving(train, CompressionMod("topk", density=0.5))
    _, traffic = compressed_run(app, NODES, rounds=4, **options)
    assert seen == [[]] * NODES + [["own"]] * 3 * NODES
    assert (traffic.client_updates, traffic.failures) == (4 * NODES, 0)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", ["topk", "int8", "powersgd"])
def test_an_applied_update_is_not_put_back_for_any_model_type(method, kind):
    """An applied update is not sent again; if it were, the model would move by more than 1."""
    options = {"topk": {"density": 1.0}, "int8": {"feedback": True}}.get(method, {})

    def train(node, values, state):
        return {"arrays": {n: value + np.asarray(1, value.dtype) for n, value in values.items()}}

    start = record_of({"w": np.zeros((6, 6), kind), "b": np.zeros(4, kind)})
    app = moving(train, CompressionMod(method, **options))
    model, _ = compressed_run(app, NODES, arrays=start, rounds=6)
    for value in model.values():
        np.testing.assert_allclose(value, 6, rtol=1e-2)
        assert value.dtype == kind


def test_two_models_are_told_apart():
    def train(node, values, state):
        return {"arrays": {name: value + 1 for name, value in values.items()}}

    compressed = CompressedGrid(grid_of(moving(train, CompressionMod("topk", density=1.0)), 2))
    models = [record_of({"w": np.full(8, 10.0 * g, np.float32)}) for g in (1, 2)]
    first = []
    for _ in range(3):
        messages = [m for g in (0, 1) for m in ask(compressed, models[g], nodes=[g + 1])]
        replies = {r.metadata.src_node_id: r.content["arrays"] for r in
                   compressed.send_and_receive(messages)}  # fmt: skip
        first.append([replies[n]["w"].numpy()[0] for n in (1, 2)])
        models[1] = replies[2]  # the replies of node 1 are never used
    np.testing.assert_allclose(first, [[11, 21], [12, 22], [13, 23]])


LAYOUT = Layout(("a", "b"), ((30, 4), (80,)), ("float32",) * 2)


def update(number):
    return np.random.default_rng(number).integers(-8, 9, LAYOUT.size).astype(np.float32) / 8


class Server:
    """A server that applies a node's updates and reports the number of the last applied reply."""

    def __init__(self, codec):
        self.codec, self.model, self.applied = codec, np.zeros(LAYOUT.size, np.float64), 0
        self.indices = None

    def take(self, state, number):
        node = NodeState(state)
        payload = node.encoded(
            self.codec, update(number), LAYOUT, applied=self.applied, seed=number
        )
        got = decode_update(payload, LAYOUT, before=self.indices)
        self.indices = got.selected
        self.model += got.dense()
        self.applied = node.sequence
        return payload


@pytest.mark.parametrize("name", [name for name in CODECS if name not in ("sign", "powersgd")])
@pytest.mark.parametrize("back", [1, 2, 5])
def test_an_old_state_puts_no_applied_update_back(name, back, caplog):
    server, state, copies = Server(make_codec(**CODECS[name])), RecordDict(), []
    for number in range(6):
        copies.append(copy.deepcopy(state))
        server.take(state, number)
    caplog.clear()
    fresh = Server(server.codec)
    fresh.applied = server.applied
    old, new = copies[-back], RecordDict()
    assert server.take(old, 9) == fresh.take(new, 9)  # the node behaves like a node without a state
    assert caplog.text.count("starts anew") == 2
    assert NodeState(old).sequence == server.applied == 7
    caplog.clear()
    server.take(old, 10)
    assert not caplog.text


def test_an_old_state_loses_its_residual_and_no_more():
    server, state = Server(make_codec(sparsifier="topk", density=0.05)), RecordDict()
    for number in range(4):
        server.take(state, number)
    old = copy.deepcopy(state)
    server.take(state, 4)
    before = server.model.copy()
    for number in range(5, 8):
        server.take(old, number)
    kept = NodeState(old).memory["residual"]
    np.testing.assert_array_equal(
        server.model - before + kept, sum(update(number) for number in range(5, 8))
    )
