"""A node whose state is lost or is an old copy starts anew and logs this."""

import copy

import numpy as np
import pytest
from flwr.app import RecordDict

from edgewire.compression.decoder import decode_update
from edgewire.compression.flower.node.state import NodeState
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from tests.applied import CODECS

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


def test_a_state_from_before_a_lost_reply_goes_on():
    codec, state = make_codec(sparsifier="topk", density=0.05), RecordDict()
    server = Server(codec)
    server.take(state, 0)
    old = copy.deepcopy(state)
    NodeState(state).encoded(codec, update(1), LAYOUT, applied=1, seed=1)  # this reply is lost
    there = NodeState(old).memory["residual"].copy()
    before = server.model.copy()
    server.take(old, 2)
    kept = NodeState(old).memory["residual"]
    np.testing.assert_array_equal(server.model - before + kept, there + update(2))
