"""Each entry of an update is in the model or in its node's residual, for any order of messages.

The server stores the indices of applied updates, within a limit of bytes.
"""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.node.state import MEMORY, stored_arrays
from edgewire.compression.flower.server import acks
from edgewire.compression.flower.server.acks import (
    OTHER_METHOD,
    AckTracker,
    AckTrackerState,
    Pending,
)
from edgewire.compression.flower.server.session import forget_nodes
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from tests.compression.flower.apps import ask, moving, record_of
from tests.grids import grid_of

ENTRIES, NODES = 10, 2


class Kept:
    """A mod around `CompressionMod`: records the sum of each node's residual."""

    def __init__(self):
        self.by_node = {}

    def __call__(self, message, context, call_next):
        reply = call_next(message, context)
        held = stored_arrays(context.state, MEMORY)
        held.pop("last-payload", None)
        self.by_node[context.node_id] = sum(float(values.sum()) for values in held.values())
        return reply


@pytest.fixture
def federation():
    """Return a grid and each node's residual, summed; nodes add 1 to ten entries and send one."""
    kept_back, uplink = Kept(), CompressionMod("topk", density=1 / ENTRIES)

    def train(node, values, state):
        return {"arrays": {"w": values["w"] + np.float32(1)}}

    app = moving(train, [kept_back, uplink])
    return CompressedGrid(grid_of(app, NODES)), kept_back.by_node


def asking(compressed, model, nodes=None, number=None):
    config = {} if number is None else {"server-round": number}
    return ask(compressed, record_of({"w": model}), nodes=nodes, **config)


def pulled(compressed, ids):
    found = []
    while len(found) < len(ids):
        found += compressed.pull_messages(ids)
    return found


def all_at_once(compressed, asked, number):
    return compressed.send_and_receive(asked())


def one_by_one(compressed, asked, number):
    """Send the same model to one node after the other; every update is applied."""
    nodes = compressed.get_node_ids()
    return [reply for node in nodes for reply in compressed.send_and_receive(asked([node]))]


def one_by_one_in_rounds(compressed, asked, number):
    return one_by_one(compressed, lambda nodes: asked(nodes, number), number)


def twice_in_a_round(compressed, asked, number):
    messages = asked(None, number)
    return [reply for _ in range(2) for reply in compressed.send_and_receive(messages)]


def two_under_way(compressed, asked, number):
    return pulled(compressed, [i for _ in range(2) for i in compressed.push_messages(asked())])


def twice_one_after_the_other(compressed, asked, number):
    """Push the same model again after each reply; a loop that pushes applies every update."""
    both = (pulled(compressed, compressed.push_messages(asked())) for _ in range(2))
    return [reply for replies in both for reply in replies]


def two_in_a_call(compressed, asked, number):
    return compressed.send_and_receive(asked() + asked())


def moves(model, replies):
    return [reply.content["arrays"]["w"].numpy() - model for reply in replies]


WAYS = [
    all_at_once, one_by_one, one_by_one_in_rounds, twice_in_a_round, two_under_way, two_in_a_call,
    twice_one_after_the_other,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_lost_and_nothing_counts_twice(federation, way):
    compressed, kept_back = federation
    model, given, applied = np.zeros(ENTRIES, np.float32), 0, 0.0
    for number in range(1, 6):
        replies = way(compressed, partial(asking, compressed, model), number)
        found = moves(model, replies)
        given += ENTRIES * len(found)
        applied += sum(float(move.sum()) for move in found)
        model = model + sum(found) / len(found)
    assert applied > 0
    assert applied + sum(kept_back.values()) == given


def test_an_update_that_the_strategy_drops_returns_to_the_memory(federation):
    """The server sends an unchanged model, so the node adds its unused update to its residual."""
    compressed, kept_back = federation
    model = np.zeros(ENTRIES, np.float32)
    first, second = compressed.get_node_ids()
    # The strategy drops this update.
    compressed.send_and_receive(asking(compressed, model, [first], 1))
    (move,) = moves(model, compressed.send_and_receive(asking(compressed, model, [second], 2)))
    newer = model + move
    (last,) = moves(newer, compressed.send_and_receive(asking(compressed, newer, [first], 3)))
    assert kept_back[first] == 2 * ENTRIES - float(last.sum())


def test_a_node_goes_on_after_a_lost_reply(federation):
    """Of a node's three replies, the first is never fetched; the other two are accepted."""
    compressed, _ = federation
    model = np.zeros(ENTRIES, np.float32)
    node = compressed.get_node_ids()[0]
    lost, later = (list(compressed.push_messages(asking(compressed, model, [node]))) for _ in "ab")
    assert lost != later
    pulled(compressed, later)
    pulled(compressed, compressed.push_messages(asking(compressed, model + 1, [node])))
    assert compressed.traffic.failures == 0


BUDGET = 40


def resolve(tracker, state, node, sequence, size):
    state.pending[node] = Pending(sequence, np.arange(size, dtype=np.uint32))
    tracker.resolve(node, applied=True)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1, 4, 5, 9, 10, 12]), st.booleans()))
)
def test_the_indices_of_the_newest_updates_are_stored_up_to_the_limit(calls):
    """Each call is a node, the number of indices in its update, and whether it leaves later."""
    state, expected = AckTrackerState(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acks, "INDEX_BUDGET", BUDGET)
        tracker = AckTracker(state)
        for sequence, (node, size, leaves) in enumerate(calls, 1):
            resolve(tracker, state, node, sequence, size)
            expected.pop(node, None)
            expected[node] = size
            while 4 * sum(expected.values()) > BUDGET and len(expected) > 1:
                del expected[next(iter(expected))]
            assert {n: len(each) for n, each in state.indices.items()} == expected
            assert tracker.last_applied(node) == sequence
            if leaves:
                forget_nodes({node}, state)
                tracker.nodes_left()
                expected.pop(node, None)
                assert tracker.last_applied(node) == 0
            if sequence % 3 == 0:
                tracker = AckTracker(state)  # a server resumes


def test_a_gibibyte_of_indices_is_stored():
    assert acks.INDEX_BUDGET == 1 << 30


def test_a_payload_of_another_method_is_refused_and_nothing_is_pending():
    layout = Layout(("w",), ((3,),), ("float32",))
    payload = make_codec(quantizer="int8").encode(np.ones(3, np.float32), layout)
    for uplink, refused in ((make_codec(), True), (make_codec(quantizer="int8"), False)):
        tracker = AckTracker(uplink=uplink)
        with pytest.raises(PayloadError, match=OTHER_METHOD) if refused else nullcontext():
            tracker.decode(1, payload, 1, layout)
        assert tracker.pending == ([] if refused else [1])
