"""Index sets coded by context change no result: lost replies, late nodes and resumed runs too."""

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from edgewire.compression.base import Kind, PayloadError
from edgewire.compression.coders.context import SPARSE, Context, coded_in_windows
from edgewire.compression.coders.entropy import Entropy
from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.node.state import store_arrays
from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.flower.replica import (
    ACTIVITY,
    MODEL,
    VERSION,
    activity_of,
    vector_layout,
)
from edgewire.compression.flower.server import delta_sync
from edgewire.compression.flower.server.step_log_sync import LOSSLESS
from edgewire.compression.make import make_codec
from edgewire.conf.network import Network
from tests.grids import grid_of
from tests.strategy.federation import ADAM, NODES, Federation, Trainer, breaks, nan, start

UPLINKS = {
    "topk": {"sparsifier": "topk", "density": 0.1},
    "esgd": {"sparsifier": "esgd", "drop": 0.8},
    "dgc": {"sparsifier": "dgc", "sparsity": 0.9, "momentum": 0.5, "warmup_steps": 0},
}
DOWNLINKS = {
    "average": {},
    "topk": {"sparsifier": "topk", "density": 0.2, "feedback": True},
}
ROUNDS = {"rounds": 7}
LOST = {(2, 2): breaks, (3, 3): nan, (1, 5): breaks}


@pytest.fixture(autouse=True)
def always_by_context(monkeypatch):
    """Code all index sets by context, also the small ones for which `entropy` is shorter."""

    def encode(self, data, spec):
        sparse = SPARSE * data.size <= spec.bound
        if data.size and spec.kind is Kind.INDICES and spec.context is not None and sparse:
            return coded_in_windows(data, spec.context)
        return Entropy.encode(self, data, spec)

    monkeypatch.setattr(Context, "encode", encode)


def trained(coder, uplink, downlink, after=None, network=None, run=ROUNDS, **options):
    """Return a federation that has trained: asynchronously if `run` has `pushes`."""
    trainer = Trainer(coder=coder, **UPLINKS[uplink], **options)
    federation = Federation(trainer, network, seed=5)
    codec = make_codec(coder=coder, **DOWNLINKS[downlink])
    each = after and (lambda done: after(federation, done))
    if "pushes" in run:
        federation.push(downlink=codec, **run)
    else:
        federation.run(downlink=codec, after=each, **run)
    return federation


def expect_same(one, other):
    for found, expected in zip(one.models, other.models, strict=True):
        assert found.tobytes() == expected.tobytes()
    assert one.strategy.traffic.failures == other.strategy.traffic.failures


@pytest.mark.parametrize("downlink", DOWNLINKS)
@pytest.mark.parametrize("uplink", UPLINKS)
@pytest.mark.parametrize("spoil", [None, LOST], ids=["", "lost"])
def test_the_run_is_the_same(uplink, downlink, spoil):
    """A reply that is not applied is decoded by its own node, with the context of its time."""
    one = trained("context", uplink, downlink, spoil=spoil)
    expect_same(one, trained("entropy", uplink, downlink, spoil=spoil))
    assert one.strategy.traffic.failures == (len(LOST) if spoil else 0)
    activity = one.replica(1)[ACTIVITY]
    assert activity.any()
    np.testing.assert_array_equal(activity, one.replica(NODES)[ACTIVITY])


@pytest.mark.parametrize("uplink", UPLINKS)
@pytest.mark.parametrize(
    ("network", "run"),
    [
        (Network(latency_ms=100.0, loss=0.25), {"timeout": 1.0}),
        (Network(latency_ms=10.0, seconds_per_step=0.2), {"quorum": 0.5}),
    ],
    ids=["lost", "late"],
)
def test_the_run_is_the_same_whatever_is_lost_or_late(uplink, network, run):
    given = {"network": network, "run": {"rounds": 15, **run}}
    one = trained("context", uplink, "topk", **given)
    expect_same(one, trained("entropy", uplink, "topk", **given))
    assert one.strategy.traffic.client_updates < 15 * NODES - 6


DIFFERENCES = {
    "all nodes": {"rounds": 8, "follow": "differences"},
    "seldom nodes": {"rounds": 24, "follow": "differences", "fraction_train": 0.25},
    "pushes": {"pushes": 40},
    "buffers": {"pushes": 40, "buffer": 3, "sender_exponent": 0.5},
}
NETWORKS = {
    "": None,
    "lost": Network(latency_ms=100.0, loss=0.25),
    "late": Network(latency_ms=10.0, seconds_per_step=0.2),
}


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("uplink", "network", "how"),
    [
        (list(UPLINKS)[(row + column) % 3], network, how)
        for row, network in enumerate(NETWORKS)
        for column, how in enumerate(DIFFERENCES)
    ],
)
@pytest.mark.parametrize("seeded", [None, start()], ids=["sent", "from seed"])
def test_differences_by_context_make_the_same_run(uplink, network, how, seeded):
    """The context of a node is made by the differences that it has got, whatever others got."""
    run = {**DIFFERENCES[how], "timeout": 1.5 if network else 1e9}
    given = {"network": NETWORKS[network], "run": run, "seeded": seeded, "spoil": LOST}
    one = trained("context", uplink, "topk", **given)
    other = trained("entropy", uplink, "topk", **given)
    expect_same(one, other)
    assert any(activity.any() for activity in one.strategy.state.deltas.activities.values())
    assert not other.strategy.state.deltas.activities


def test_versions_that_were_deleted_keep_their_context_on_their_way(monkeypatch):
    """A reply is coded by the version that the node has, also if the budget has dropped it."""
    monkeypatch.setattr(delta_sync, "BUDGET", 3 * start().nbytes)
    one = trained("context", "topk", "topk", run=DIFFERENCES["pushes"])
    assert one.strategy.traffic.failures == 0
    state, tracker = one.strategy.state.deltas, one.strategy.state.session.versions
    deleted = state.activities.keys() - state.versions.keys()
    assert deleted
    assert deleted <= {*tracker.sent.values()} | {*tracker.has.values()}


def test_the_budget_counts_activities(monkeypatch):
    run = DIFFERENCES["seldom nodes"]
    one = trained("context", "topk", "topk", run=run)
    each = start().nbytes + len(start())
    assert len(one.strategy.state.deltas.versions) > 2
    monkeypatch.setattr(delta_sync, "BUDGET", 2 * each)
    two = trained("context", "topk", "topk", run=run)
    assert len(two.strategy.state.deltas.versions) <= 2 + NODES // 4
    assert two.strategy.traffic.failures == 0


def test_a_node_that_lost_its_activity_gets_the_whole_model():
    def forget(federation, done):
        if done == 4:
            for name in (MODEL, VERSION, ACTIVITY):
                assert name in federation.replica(1)
            arrays = {k: v for k, v in federation.replica(1).items() if k != ACTIVITY}
            store_arrays(federation.records(1), REPLICA, arrays)

    run = {"rounds": 8, "follow": "differences"}
    one = trained("context", "topk", "topk", after=forget, run=run)
    assert one.strategy.traffic.failures == 1
    assert (1, 5) not in one.trainer.models
    np.testing.assert_array_equal(one.trainer.models[1, 6], one.models[5])


def test_the_activity_is_the_server_s():
    federation = trained("context", "topk", "topk", optimizer=ADAM)
    server, node = federation.strategy.state.replica[ACTIVITY], federation.replica(1)[ACTIVITY]
    np.testing.assert_array_equal(server & 127, node >> 1)  # the nodes lack the last update


@pytest.mark.parametrize("seeded", [None, start()], ids=["sent", "from seed"])
def test_a_node_that_comes_later_gets_the_activity(seeded):
    def renew(federation, done):
        if done == 3:
            federation.records(1).clear()
            federation.strategy.state.session.versions.has.clear()

    one = trained("context", "topk", "topk", after=renew, seeded=seeded)
    expect_same(one, trained("entropy", "topk", "topk", after=renew, seeded=seeded))
    snapshot = {"model", "activity"} if seeded is None else {"1", "2", "3"}
    assert one.seen[1, 4] == snapshot
    np.testing.assert_array_equal(one.replica(1)[ACTIVITY], one.replica(2)[ACTIVITY])


def test_other_flower_apps_refuse_the_coder():
    with pytest.raises(ValueError, match="coder=context is for"):
        CompressionMod("topk", density=0.1, coder="context")
    with pytest.raises(ValueError, match="coder=context is for"):
        CompressedGrid(grid_of(ClientApp(), 1), downlink="context")


@pytest.mark.parametrize("values", [[0.5], [256.0], [-1.0]])
def test_a_snapshot_with_another_activity_is_refused(values):
    payload = LOSSLESS.encode(np.array(values, np.float32), vector_layout(ACTIVITY, 1))
    with pytest.raises(PayloadError, match="0 to 255"):
        activity_of(payload, 1)
