"""A fifth of the requests and replies is lost; every update still counts exactly once."""

import copy

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.flower import (
    CompressedGrid,
    CompressionMod,
    layout_of,
    to_arrays,
    to_vector,
)
from edgewire.compression.flower.node.state import NodeState, store_arrays, stored_arrays
from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.flower.replica import MODEL
from edgewire.compression.flower.server.delta_sync import DeltaSync
from edgewire.compression.flower.server.version_tracker import VersionTracker
from edgewire.compression.flower.tensor_split import Model, TensorSplit
from edgewire.compression.make import make_codec
from edgewire.simulation.grid import LocalGrid
from tests.applied import CODECS, expect_nothing_lost, record_applied
from tests.compression.flower.apps import counted, moving, record_of
from tests.compression.flower.federation import NODES, compressed_run, initial
from tests.grids import pool_of

ROUNDS = 25
STAGE = {"int8": "quantizer", "topk": "sparsifier", "sign": "quantizer", "qsgd": "quantizer"}


class Lossy(LocalGrid):
    """A grid that loses a fifth of requests and replies, and sometimes repeats an old reply."""

    def __init__(self, *options):
        super().__init__(*options)
        self.draw = np.random.default_rng(3)
        self.old = {}
        self.lost = self.again = 0

    def send_and_receive(self, messages, *, timeout=None):
        arriving = [m for m in messages if self.draw.random() > 0.2]
        replies = []
        for reply in super().send_and_receive(arriving, timeout=timeout):
            node, chance = reply.metadata.src_node_id, self.draw.random()
            if chance < 0.2:
                self.lost += 1
                continue
            if chance < 0.25 and node in self.old:
                self.again += 1
                reply = self.old[node]
            self.old[node] = copy.deepcopy(reply)
            replies.append(reply)
        return replies


def app_with(mod, given):
    """Return an app whose updates are multiples of 1/8; `given` has the exact sum for each node."""

    def train(node, values, state):
        draw = np.random.default_rng([node, counted(state)])
        moved = {n: np.float32(v + draw.integers(-8, 9, v.shape) / 8) for n, v in values.items()}
        delta = [(moved[name] - value).reshape(-1) for name, value in values.items()]
        given[node] = given.get(node, 0) + np.concatenate(delta).astype(np.float64)
        return {"arrays": moved, "metrics": {"num-examples": 1, "loss": float(draw.random())}}

    return moving(train, mod)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, False) for name in CODECS), ("topk-int8", True), ("sign", True), ("esgd", True)],
)
def test_sent_plus_kept_equals_given_whatever_is_lost(name, changes, monkeypatch):
    codec, given, applied = make_codec(**CODECS[name]), {}, record_applied(monkeypatch)
    pool = pool_of(app_with(CompressionMod(codec), given), NODES)
    grid = Lossy(pool, NODES)
    downlink = make_codec(quantizer="int8") if changes else None
    compressed = CompressedGrid(grid, downlink=downlink)
    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=ROUNDS)
    # No later message does this for the last round.
    applied.tracker.applied(applied.tracker.pending)
    assert grid.lost > 10
    assert grid.again > 1
    assert len(applied.seen) == compressed.traffic.client_updates > 60
    assert len(applied.seen) == len(set(applied.seen))
    layout = layout_of(initial())
    for node in range(1, NODES + 1):
        state = NodeState(pool.states()[node])
        expect_nothing_lost(codec, state, applied, node, layout, given[node - 1])


def test_a_node_with_a_damaged_model_gets_the_whole_model_again():
    codec = make_codec("dense", "int8")

    def app(message, context):
        """Run each node like a separate process: nodes of one process share a replica."""
        return app_with(CompressionMod(codec), {})(message, context)

    pool = pool_of(app, NODES)
    compressed = CompressedGrid(LocalGrid(pool, NODES), downlink="int8")
    failures, sizes = [], []

    def damage(server_round, arrays):
        failures.append(compressed.traffic.failures)
        sizes.append(compressed.traffic.downlink_bytes)
        if server_round == 2:
            state = pool.states()[3]
            replica = stored_arrays(state, REPLICA)
            replica[MODEL] = replica[MODEL] + np.float32(1e-3)
            store_arrays(state, REPLICA, replica)

    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=5, evaluate_fn=damage)
    assert failures == [0, 0, 0, 1, 1, 1]
    rounds = np.diff(sizes)
    assert rounds[1] < rounds[0] / 2  # changes are smaller than the model
    assert rounds[1] < rounds[3] < rounds[0]  # one of six nodes got the whole model again


@pytest.mark.parametrize("downlink", STAGE)
def test_nodes_converge_to_a_model_that_stands_still(downlink):
    """With a lossy downlink, messages also send what earlier ones lost, so nodes converge."""
    options = {"density": 0.2} if downlink == "topk" else {}
    seen = []

    def train(node, values, state):
        seen.append(to_vector(record_of(values)))
        return {"arrays": values}

    target = np.random.default_rng(9).normal(size=layout_of(initial()).size).astype(np.float32)

    class Fixed(FedAvg):
        """A strategy whose model is the target from round 1 on, whatever the nodes reply."""

        def aggregate_train(self, server_round, replies):
            _, metrics = super().aggregate_train(server_round, replies)
            return to_arrays(target, layout_of(initial())), metrics

    strategy = Fixed(fraction_evaluate=0, min_train_nodes=2, min_available_nodes=2)
    codec = make_codec(**{STAGE[downlink]: downlink}, **options)
    app = moving(train, CompressionMod(make_codec()))
    compressed_run(app, 2, strategy, rounds=30, downlink=codec)
    errors = [float(np.linalg.norm(vector - target)) for vector in seen[::2]]
    assert errors[2] < errors[1]
    assert errors[-1] < 0.05 * errors[1]


def test_unused_versions_and_those_beyond_the_budget_are_dropped(monkeypatch):
    layout = layout_of(initial())
    models = np.random.default_rng(0).normal(size=(4, layout.size)).astype(np.float32)
    way, form = DeltaSync(make_codec(quantizer="int8")), TensorSplit(layout)
    versions, model_updates = VersionTracker(way), []
    for model in models:
        way.offer(Model(model), form, number=1, named=False)
        model_updates.append(way.model_update(None))
    for node in (1, 2, 3):
        versions.send(node, model_updates[node])
        versions.confirm(node, model_updates[node].header["version"])
    versions.confirm(0, model_updates[0].header["version"])  # node 0 was never sent this version
    way.tidy(versions.held)
    assert [versions.base_of(node) is not None for node in range(4)] == [False, True, True, True]
    assert not way.knows(model_updates[0].header["version"])
    way.model_update(versions.base_of(1))  # used now, so no longer the oldest
    monkeypatch.setattr("edgewire.compression.flower.server.delta_sync.BUDGET", 2 * 4 * layout.size)
    way.tidy(versions.held)
    assert [versions.base_of(node) is not None for node in range(4)] == [False, True, False, True]
