"""Each entry of an update is in the model or in its node's residual, for any order of messages."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from compression.flower import CompressedGrid, CompressionMod
from compression.flower.node.state import MEMORY, stored_arrays
from simulation.grid import LocalGrid
from simulation.workers.node_host import NodeHostSpec
from simulation.workers.pool import make_pool

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
    kept_back = Kept()
    app = ClientApp(mods=[kept_back, CompressionMod("topk", density=1 / ENTRIES)])

    @app.train()
    def train(message, context):
        moved = Array(message.content["arrays"]["w"].numpy() + np.float32(1))
        metrics = MetricRecord({"num-examples": 1, "loss": 1.0})
        content = RecordDict({"arrays": ArrayRecord({"w": moved}), "metrics": metrics})
        return Message(content, reply_to=message)

    grid = LocalGrid(make_pool(NodeHostSpec(app, NODES, 1, {}), 1), NODES)
    return CompressedGrid(grid), kept_back.by_node


def asking(model, nodes, **config):
    record = ArrayRecord({"w": Array(model)})
    content = RecordDict({"arrays": record, "config": ConfigRecord(config)})
    return [Message(content, node, "train", group_id="1") for node in nodes]


def moves(model, replies):
    return [reply.content["arrays"]["w"].numpy() - model for reply in replies]


def all_at_once(compressed, model, number):
    return moves(model, compressed.send_and_receive(asking(model, compressed.get_node_ids())))


def one_by_one(compressed, model, number):
    """Send the same model to one node after the other; every update is applied."""
    return [
        move
        for node in compressed.get_node_ids()
        for move in moves(model, compressed.send_and_receive(asking(model, [node])))
    ]


def one_by_one_in_rounds(compressed, model, number):
    return [
        move
        for node in compressed.get_node_ids()
        for move in moves(
            model, compressed.send_and_receive(asking(model, [node], **{"server-round": number}))
        )
    ]


def twice_in_a_round(compressed, model, number):
    asked = asking(model, compressed.get_node_ids(), **{"server-round": number})
    return [
        *moves(model, compressed.send_and_receive(asked)),
        *moves(model, compressed.send_and_receive(asked)),
    ]


def two_under_way(compressed, model, number):
    asked = asking(model, compressed.get_node_ids())
    ids = [
        *compressed.push_messages(asked),
        *compressed.push_messages(asking(model, compressed.get_node_ids())),
    ]
    found = []
    while len(found) < len(ids):
        found += compressed.pull_messages(ids)
    return moves(model, found)


def twice_one_after_the_other(compressed, model, number):
    """Push the same model again after each reply; a loop that pushes applies every update."""
    found = []
    for _ in range(2):
        ids, came = compressed.push_messages(asking(model, compressed.get_node_ids())), []
        while len(came) < len(ids):
            came += compressed.pull_messages(ids)
        found += moves(model, came)
    return found


def two_in_a_call(compressed, model, number):
    nodes = compressed.get_node_ids()
    return moves(model, compressed.send_and_receive(asking(model, nodes) + asking(model, nodes)))


WAYS = [
    all_at_once, one_by_one, one_by_one_in_rounds, twice_in_a_round, two_under_way, two_in_a_call,
    twice_one_after_the_other,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_lost_and_nothing_counts_twice(federation, way):
    compressed, kept_back = federation
    model, given, applied = np.zeros(ENTRIES, np.float32), 0, 0.0
    for number in range(1, 6):
        found = way(compressed, model, number)
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
    compressed.send_and_receive(asking(model, [first], **{"server-round": 1}))
    (move,) = moves(
        model, compressed.send_and_receive(asking(model, [second], **{"server-round": 2}))
    )
    newer = model + move
    (last,) = moves(
        newer, compressed.send_and_receive(asking(newer, [first], **{"server-round": 3}))
    )
    assert kept_back[first] == 2 * ENTRIES - float(last.sum())


def test_a_node_goes_on_after_a_lost_reply(federation):
    """Of a node's three replies, the first is never fetched; the other two are accepted."""
    compressed, _ = federation
    model = np.zeros(ENTRIES, np.float32)
    node = compressed.get_node_ids()[0]
    lost, later = (list(compressed.push_messages(asking(model, [node]))) for _ in range(2))
    assert lost != later
    while not compressed.pull_messages(later):
        pass
    (third,) = compressed.push_messages(asking(model + 1, [node]))
    while not compressed.pull_messages([third]):
        pass
    assert compressed.traffic.failures == 0
