"""Nodes make the model before training from the run's seed (`downlink.from_seed`)."""

import numpy as np
import pytest
from safetensors.torch import load_file

from edgewire.compression.flower.node_replica import LACKS, NOT_MADE, OTHER, NodeReplica
from edgewire.compression.flower.server import delta_sync
from edgewire.compression.make import make_codec
from edgewire.conf.network import Network
from tests.local_runs import local_run
from tests.runs import result_of
from tests.same import expect_same
from tests.strategy.federation import AVERAGE, NODES, SIZE, Federation, Trainer, start

DOWNLINKS = {
    "average": AVERAGE,
    "int8": make_codec(quantizer="int8"),
    "topk": make_codec(sparsifier="topk", density=0.2),
    "qsgd": make_codec(quantizer="qsgd"),
}
HOW = ["steps", "differences", "pushes"]
FLOATS = 4 * SIZE  # bytes of the whole model as float32


def trained(seeded, how, downlink, *, from_seed=None, **options):
    """Return a federation after three rounds or twelve pushes, and the strategy.

    `how`: "pushes", or how nodes follow the server's model (`SparseAveraging`). `from_seed`: True
    if the server believes that the nodes make the model before training.
    """
    federation = Federation(Trainer(seeded=seeded))
    federation.from_seed = federation.from_seed if from_seed is None else from_seed
    if how == "pushes":
        return federation, federation.push(12, downlink=downlink, **options)
    return federation, federation.run(3, downlink=downlink, follow=how, **options)


@pytest.mark.parametrize("name", DOWNLINKS)
@pytest.mark.parametrize("how", HOW)
def test_the_run_is_the_same_and_the_first_model_is_not_sent(how, name):
    federation, strategy = trained(start(), how, DOWNLINKS[name])
    reference, sent = trained(None, how, DOWNLINKS[name])
    for found, expected in zip(federation.models, reference.models, strict=True):
        assert found.tobytes() == expected.tobytes()
    assert not strategy.traffic.failures
    assert all(not federation.seen[node, 1] for node in range(1, NODES + 1))
    saved = sent.traffic.downlink_bytes - strategy.traffic.downlink_bytes
    assert saved > 0.75 * NODES * FLOATS  # a lossless downlink saves a little less


@pytest.mark.parametrize("name", DOWNLINKS)
@pytest.mark.parametrize("how", HOW)
def test_a_node_that_makes_another_model_gets_the_server_s(how, name, caplog):
    other = start()
    other[-1] = np.nextafter(other[-1], np.float32(2))
    federation, strategy = trained(other, how, DOWNLINKS[name])
    assert strategy.traffic.failures == NODES
    assert OTHER in caplog.text
    assert strategy.traffic.downlink_bytes > NODES * FLOATS
    assert len(federation.models) > 1
    assert federation.models[-1].tobytes() != start().tobytes()


@pytest.mark.parametrize("how", HOW)
def test_a_node_that_makes_no_model_gets_the_server_s(how, caplog):
    strategy = trained(None, how, DOWNLINKS["int8"], from_seed=True)[1]
    assert strategy.traffic.failures == NODES
    assert NOT_MADE in caplog.text


def test_a_node_s_own_model_never_replaces_the_server_s(monkeypatch):
    """The model before training is sent twice here; each message comes to a new process."""
    other = start()
    other[0] += 1

    def forget(self, *arguments):
        self._made = None
        return model(self, *arguments)

    model = NodeReplica.model
    monkeypatch.setattr(NodeReplica, "model", forget)
    federation = Federation(Trainer(seeded=other, update="delta"))
    strategy = federation.push(30, downlink=DOWNLINKS["int8"], buffer=10)
    assert strategy.traffic.failures == NODES


@pytest.mark.parametrize("name", DOWNLINKS)
def test_a_node_that_comes_later_repeats_all_steps(name):
    def renew(done):
        if done == 2:
            federation.records(1).clear()
            federation.strategy.state.session.versions.has.clear()

    federation = Federation(Trainer(seeded=start()))
    strategy = federation.run(4, downlink=DOWNLINKS[name], after=renew)
    assert not strategy.traffic.failures
    assert federation.seen[1, 3] == {"1", "2"}
    replica = federation.replica(1)["model"]
    assert replica.tobytes() == federation.trainer.models[1, 4].tobytes()


def test_a_server_that_resumes_sends_the_whole_model():
    """The nodes may be ahead of the checkpoint, so their version is unknown."""

    def back(done):
        if done == 2:
            federation.strategy.abandon()

    federation = Federation(Trainer(seeded=start()))
    strategy = federation.run(4, after=back)
    assert not strategy.traffic.failures
    assert federation.seen[1, 3] == {"model"}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "overrides",
    [
        "algorithm=fedavg_f2i downlink=average",
        "algorithm=fedavg_f2i downlink=int8 strategy=fedadam",
        "algorithm=fedavg local=scaffold downlink=topk",
        "algorithm=fedavg_dgc",
        "algorithm=adacomp downlink=qsgd strategy.pushes=10",
        "algorithm=cesgd strategy.mask_received=true",
        "algorithm=fedavg_f2i downlink=int8 model=four_layers batch_size=32",
    ],
)
def test_an_app_s_run_is_the_same(overrides, tmp_path):
    runs = {}
    for given in ("false", "true"):
        words = [*overrides.split(), "nodes=2", "rounds=2", f"downlink.from_seed={given}"]
        local_run(tmp_path / given, *words)
        runs[given] = load_file(tmp_path / given / "model.safetensors"), result_of(tmp_path / given)
    (weights, sent), (seeded, saved) = runs["false"], runs["true"]
    expect_same(weights, seeded)
    assert saved["failures"] == sent["failures"] == 0
    assert saved["downlink_bytes"] < 0.7 * sent["downlink_bytes"]


@pytest.mark.parametrize("budget", [0, 5 * FLOATS, delta_sync.BUDGET])
def test_a_node_whose_version_is_unknown_gets_the_whole_model(budget, monkeypatch, caplog):
    """It no longer has the model before training, so no difference from it can help."""
    monkeypatch.setattr(delta_sync, "BUDGET", budget)
    network = Network(loss=0.3, seconds_per_step=0.001)
    federation = Federation(Trainer(seeded=start()), network, seed=3)
    options = {"fraction_train": 0.5, "timeout": 1.0, "follow": "differences"}
    strategy = federation.run(20, downlink=DOWNLINKS["topk"], **options)
    assert LACKS not in caplog.text
    assert strategy.traffic.client_updates > 15
    assert np.isfinite(federation.models[-1]).all()


def test_nodes_with_the_same_version_get_one_difference(monkeypatch):
    federation = Federation(Trainer(seeded=start()))
    strategy = federation.run(4, downlink=DOWNLINKS["qsgd"], follow="differences", deadline=5.0)
    assert len({node for node, _ in federation.seen}) == NODES
    assert strategy.state.deltas.count == 3  # a version for each round after the first
