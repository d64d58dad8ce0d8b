"""Apps with a loop of `push_messages` and `pull_messages`, without a strategy or rounds."""

import numpy as np
import pytest
from flwr.supercore.run import Run

from edgewire.compression.flower import CompressedGrid, CompressionMod, Traffic
from edgewire.simulation.any_app.grid import GuestGrid
from edgewire.simulation.grid import LocalGrid
from tests.compression.flower.apps import NODES, ask, moving, record_of, to_targets
from tests.compression.flower.federation import SHAPES, initial
from tests.grids import grid_of, pool_of


@pytest.mark.few(4)
@pytest.mark.parametrize("downlink", [None, "int8"])
@pytest.mark.parametrize("method", ["dense", "topk", "qsgd"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_app_that_mixes_each_reply_at_once_converges(method, downlink, workers):
    """The app mixes each reply into the model at once, and sends the new model to the same node."""
    options = {"density": 0.5} if method == "topk" else {}
    app = moving(to_targets, CompressionMod(method, **options))
    pool = pool_of(app, NODES, workers=workers)
    try:
        grid = GuestGrid(LocalGrid(pool, NODES), Run.create_empty(1))
        compressed = CompressedGrid(grid, downlink=downlink, traffic=Traffic())
        arrays, done = initial(), 0
        waiting = set(compressed.push_messages(ask(compressed, arrays)))
        while done < 60:
            replies = compressed.pull_messages(waiting)
            for reply in replies:
                assert not reply.has_error(), reply.error.reason
                waiting.discard(reply.metadata.reply_to_message_id)
                theirs, mine = reply.content["arrays"], arrays
                arrays = record_of({n: (mine[n].numpy() + theirs[n].numpy()) / 2 for n in mine})
                done += 1
                messages = ask(compressed, arrays, nodes=[reply.metadata.src_node_id])
                waiting.update(compressed.push_messages(messages))
    finally:
        pool.close()
    assert compressed.traffic.client_updates == done
    assert compressed.traffic.failures == 0
    for name, array in arrays.items():
        target = len(name) + 1  # the mean of the nodes' targets
        before, after = (np.abs(a.numpy() - target).max() for a in (initial()[name], array))
        assert after < before / 2


def test_rounds_and_updates_are_those_of_messages_for_training():
    app = moving(to_targets, CompressionMod("int8"), lambda node, values, state: {})
    compressed = CompressedGrid(grid_of(app))
    train, evaluate = (ask(compressed, initial(), kind) for kind in ("train", "evaluate"))
    counts = []
    for messages in ([], evaluate, [evaluate[0], train[1]], train, []):
        for reply in compressed.pull_messages(compressed.push_messages(messages)):
            assert not reply.has_error()
        counts.append((compressed.state.round, compressed.traffic.client_updates))
    assert counts == [(0, 0), (0, 0), (1, 1), (2, 1 + NODES), (2, 1 + NODES)]


def test_replies_that_are_pulled_need_not_be_alike():
    names = (("conv.weight",), ("scale", "fc.weight"), ("conv.bias",))

    def train(node, values, state):
        moved = to_targets(node, values, state)["arrays"]
        return {"arrays": {name: moved[name] for name in names[node]}}

    compressed = CompressedGrid(grid_of(moving(train, CompressionMod("dense"))))
    replies = compressed.pull_messages(compressed.push_messages(ask(compressed, initial())))
    assert [tuple(reply.content["arrays"]) for reply in replies] == list(names)
    assert compressed.traffic.failures == 0


def test_a_message_to_a_node_that_is_gone_spoils_nothing():
    grid = GuestGrid(grid_of(moving(to_targets, CompressionMod("int8"))), Run.create_empty(1))
    compressed = CompressedGrid(grid, downlink="int8")
    ids = compressed.push_messages(ask(compressed, initial(), nodes=[1, 77, 3]))
    assert len(ids) == 2
    replies = compressed.pull_messages(ids)
    while len(replies) < 2:
        replies += compressed.pull_messages(ids[len(replies) :])
    assert sorted(r.metadata.src_node_id for r in replies) == [1, 3]
    assert tuple(replies[0].content["arrays"]) == tuple(SHAPES)


def test_each_update_of_a_loop_without_rounds_draws_anew():
    """Random rounding differs between updates; otherwise a node's rounding errors would add up."""

    def train(node, values, state):
        return {"arrays": {"w": np.linspace(0, 1, 50, dtype=np.float32)}}

    compressed = CompressedGrid(grid_of(moving(train, CompressionMod("qsgd")), 1))
    start, seen = record_of({"w": np.zeros(50, np.float32)}), []
    for _ in range(3):
        (reply,) = compressed.pull_messages(compressed.push_messages(ask(compressed, start)))
        seen.append(reply.content["arrays"]["w"].numpy())
    assert len({values.tobytes() for values in seen}) == 3
