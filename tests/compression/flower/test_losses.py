"""A fifth of the requests and replies is lost; every update still counts exactly once."""

import copy

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from compression import decode_update, make_codec
from compression.flower import (
    CompressedGrid,
    CompressionMod,
    layout_of,
    payload_of,
    to_arrays,
    to_vector,
)
from compression.flower.acks import AckTracker
from compression.flower.node.state import NodeState, store_arrays, stored_arrays
from compression.flower.node_replica import MODEL, REPLICA
from compression.flower.server.model_sync import DeltaSync
from compression.flower.server.session import VersionTracker
from compression.flower.tensor_split import Model, TensorSplit
from simulation.grid import LocalGrid
from tests.compression.flower.federation import NODES, SHAPES, initial
from tests.grids import pool_of

ROUNDS = 25
CODECS = {
    "topk": {"sparsifier": "topk", "density": 0.05},
    "topk-int8": {"sparsifier": "topk", "density": 0.05, "quantizer": "int8", "feedback": True},
    "threshold": {"sparsifier": "threshold", "threshold": 0.3},
    "randomk": {"sparsifier": "randomk", "density": 0.1},
    "gradient_dropping": {"sparsifier": "gradient_dropping", "drop": 0.9},
    "sign": {"quantizer": "sign"},
    "powersgd": {"quantizer": "powersgd", "rank": 1},
    "selective-feedback": {"sparsifier": "selective", "density": 0.05, "feedback": True},
    "cesgd-feedback": {"sparsifier": "cesgd", "feedback": True},
    "dgc": {"sparsifier": "dgc", "sparsity": 0.9, "momentum": 0.0},
    "esgd": {"sparsifier": "esgd", "drop": 0.8, "beta": 1.0, "cap": 0.2},
}


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
    app = ClientApp()

    @app.train(mods=[mod])
    def train(message, context):
        node = context.node_config["partition-id"]
        draw = np.random.default_rng([node, message.content["config"]["server-round"]])
        moved, delta = {}, []
        for name, array in message.content["arrays"].items():
            step = draw.integers(-8, 9, size=array.shape).astype(np.float32) / 8
            moved[name] = Array(np.asarray(array.numpy() + step, np.float32))
            delta.append((moved[name].numpy() - array.numpy()).reshape(-1))
        given[node] = given.get(node, 0) + np.concatenate(delta).astype(np.float64)
        metrics = {"num-examples": 1, "loss": float(draw.random())}
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    return app


@pytest.fixture
def sent(monkeypatch):
    """Record applied updates: sums by partition, pairs (node, sequence), and the `AckTracker`."""
    total, seen, found = {}, [], []
    decoded = {}
    decode, resolve = AckTracker.decode, AckTracker.resolve

    def spy_decode(self, node, payload, sequence, *rest):
        update = decode(self, node, payload, sequence, *rest)
        decoded[node] = sequence, update.dense().astype(np.float64)
        found[:] = [self]
        return update

    def spy_resolve(self, node, *, applied):
        if applied and node in self.pending:
            sequence, values = decoded[node]
            total[node - 1] = total.get(node - 1, 0) + values
            seen.append((node, sequence))
        resolve(self, node, applied=applied)

    monkeypatch.setattr(AckTracker, "decode", spy_decode)
    monkeypatch.setattr(AckTracker, "resolve", spy_resolve)
    return total, seen, found


def still_kept(codec, state, acks, node, layout):
    """Return a node's unsent part: its residual, plus its last update if it was not applied."""
    kept = state.memory[
        "error" if codec.sparsifier.residual_key is None else codec.sparsifier.residual_key
    ]
    if state.sequence != acks.last_applied(node):
        sent = state.memory.get("sent")
        before = None if sent is None else np.flatnonzero(sent).astype(np.uint32)
        kept = kept + decode_update(state.last, layout, before=before).dense()
    return kept


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, False) for name in CODECS), ("topk-int8", True), ("sign", True), ("esgd", True)],
)
def test_sent_plus_kept_equals_given_whatever_is_lost(name, changes, sent):
    codec, given = make_codec(**CODECS[name]), {}
    pool = pool_of(app_with(CompressionMod(codec), given), NODES)
    grid = Lossy(pool, NODES)
    downlink = make_codec(quantizer="int8") if changes else None
    compressed = CompressedGrid(grid, downlink=downlink)
    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=ROUNDS)
    total, seen, (acks,) = sent
    acks.applied(acks.pending)  # no later message does this for the last round
    assert grid.lost > 10
    assert grid.again > 1
    assert len(seen) == len(set(seen)) == compressed.traffic.client_updates > 60
    layout = layout_of(initial())
    for node in range(1, NODES + 1):
        state = NodeState(pool.contexts[node].state)
        kept = still_kept(codec, state, acks, node, layout)
        scale = max(np.abs(given[node - 1]).max(), np.abs(kept).max(), 1)
        np.testing.assert_allclose(total[node - 1] + kept, given[node - 1], atol=2e-5 * scale)


def test_without_losses_nothing_is_put_back(monkeypatch):
    codec = make_codec("topk", density=0.05)
    monkeypatch.setattr(type(codec), "restore", None)  # a call would raise
    pool = pool_of(app_with(CompressionMod(codec), {}), NODES)
    compressed = CompressedGrid(LocalGrid(pool, NODES))
    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=5)
    assert compressed.traffic.failures == 0


def test_a_node_that_lost_its_state_takes_part_again():
    codec = make_codec("topk", density=0.05)
    pool = pool_of(app_with(CompressionMod(codec), {}), 2)
    strategy = FedAvg(fraction_evaluate=0, min_train_nodes=2, min_available_nodes=2)
    compressed = CompressedGrid(LocalGrid(pool, 2), downlink="int8")
    failures = []

    def forget(server_round, arrays):
        failures.append(compressed.traffic.failures)
        if server_round == 3:
            pool.contexts.clear()

    strategy.start(compressed, initial(), num_rounds=6, evaluate_fn=forget)
    # The server needs one round to notice the lost replicas; then training goes on.
    assert failures == [0, 0, 0, 0, 2, 2, 2]


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
            state = pool.contexts[3].state
            replica = stored_arrays(state, REPLICA)
            replica[MODEL] = replica[MODEL] + np.float32(1e-3)
            store_arrays(state, REPLICA, replica)

    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=5, evaluate_fn=damage)
    assert failures == [0, 0, 0, 1, 1, 1]
    rounds = np.diff(sizes)
    assert rounds[1] < rounds[0] / 2  # changes are smaller than the model
    assert rounds[1] < rounds[3] < rounds[0]  # one of six nodes got the whole model again


@pytest.mark.parametrize("downlink", ["int8", "topk", "sign", "qsgd"])
def test_nodes_converge_to_a_model_that_stands_still(downlink):
    """With a lossy downlink, messages also send what earlier ones lost, so nodes converge."""
    codec = (
        make_codec("topk", density=0.2) if downlink == "topk" else make_codec(quantizer=downlink)
    )
    seen = []
    app = ClientApp()

    @app.train(mods=[CompressionMod(make_codec())])
    def train(message, context):
        arrays = message.content["arrays"]
        seen.append(to_vector(arrays))
        content = {"arrays": arrays, "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    pool = pool_of(app, 2)
    target = np.random.default_rng(9).normal(size=layout_of(initial()).size).astype(np.float32)

    class Fixed(FedAvg):
        """A strategy whose model is the target from round 1 on, whatever the nodes reply."""

        def aggregate_train(self, server_round, replies):
            _, metrics = super().aggregate_train(server_round, replies)
            return to_arrays(target, layout_of(initial())), metrics

    strategy = Fixed(fraction_evaluate=0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(CompressedGrid(LocalGrid(pool, 2), downlink=codec), initial(), num_rounds=30)
    errors = [float(np.linalg.norm(vector - target)) for vector in seen[::2]]
    assert errors[2] < errors[1]
    assert errors[-1] < 0.05 * errors[1]


def test_payload_of_a_change_is_smaller_than_the_model():
    sizes = []

    def cap_weights(message, context):
        sizes.append(len(payload_of(message.content)[1]))
        return inner(message, context)

    inner = app_with(CompressionMod(make_codec()), {})
    pool = pool_of(cap_weights, NODES)
    compressed = CompressedGrid(LocalGrid(pool, NODES), downlink="int8")
    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=3)
    whole, changes = sizes[:NODES], sizes[NODES:]
    assert sum(np.prod(s, dtype=int) for s in SHAPES.values()) * 4 < min(whole)
    assert max(changes) < min(whole) / 2


def test_unused_versions_and_those_beyond_the_budget_are_dropped(monkeypatch):
    layout = layout_of(initial())
    models = np.random.default_rng(0).normal(size=(4, layout.size)).astype(np.float32)
    way, form = DeltaSync(make_codec(quantizer="int8")), TensorSplit(layout)
    versions, model_updates = VersionTracker(way), []
    for model in models:
        way.offer(Model(model), form, named=False)
        model_updates.append(way.model_update(None))
    for node in (1, 2, 3):
        versions.send(node, model_updates[node])
        versions.confirm(node, model_updates[node].header["version"])
    versions.confirm(0, model_updates[0].header["version"])  # node 0 was never sent this version
    way.tidy(versions.held)
    assert [versions.base_of(node) is not None for node in range(4)] == [False, True, True, True]
    assert not way.knows(model_updates[0].header["version"])
    way.model_update(versions.base_of(1))  # used now, so no longer the oldest
    monkeypatch.setattr("compression.flower.server.model_sync.BUDGET", 2 * 4 * layout.size)
    way.tidy(versions.held)
    assert [versions.base_of(node) is not None for node in range(4)] == [False, True, False, True]
