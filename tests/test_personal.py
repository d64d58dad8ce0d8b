"""Personal layers stay at the nodes: never sent, stored, restored, and evaluated there."""

from functools import cache

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from edgewire.client.node import Node
from edgewire.client.training import OWN, Trainer
from edgewire.compression.flower.headers import TrainConfig
from edgewire.conf.saved_model import predictor_of
from edgewire.report.card import CARD, write_card
from edgewire.task.flat_model import PERSONAL
from edgewire.task.models.parts import MODELS
from tests.local_runs import expect_resumed, local_run
from tests.runs import configured, history_of, result_of

WORDS = ["dataset=digits", "model=mlp", "model.name=normed", "nodes=4", "rounds=3", "lr=0.05"]
OURS = ["algorithm=fedavg", "strategy=sparse_averaging", "strategy.update=delta"]
NODES = ["dataset.holdout=0.25", "strategy.fraction_evaluate=1"]
KEPT = {
    "head": "personal=[head.*]",
    "batchnorm": "personal=batchnorm",
    "both": "personal=[batchnorm,head.*]",
}


class Normed(nn.Module):
    """Two kinds of BatchNorm, one with a counter that is used, and a head."""

    def __init__(self, channels, size, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * size**2, 16), nn.BatchNorm1d(16), nn.ReLU(),
            nn.Linear(16, 8), nn.BatchNorm1d(8, momentum=None),
        )  # fmt: skip
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.body(x).relu())


@pytest.fixture(autouse=True)
def _normed(monkeypatch):
    monkeypatch.setitem(MODELS, "normed", Normed)


def ran(folder, *words, **options):
    local_run(folder, *WORDS, *words, **options)
    return result_of(folder), history_of(folder)


def tensors(flat):
    return {name: tensor.detach().clone() for name, tensor in flat.module.state_dict().items()}


LOCAL = {
    "plain": ["compression=none"],
    "half": ["model.dtype=bfloat16"],
    "moments": ["local=kept_optimizer", "optimizer=adam"],
    "frozen": ["trainable=[body.4.*,body.5.*,head.*]"],
}


@pytest.mark.few(4)
@pytest.mark.parametrize("words", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_node_trains_as_if_the_whole_model_were_its_own(kept, words):
    """The reference trains and keeps the whole model; its shared part is replaced in between."""
    words = [*WORDS, *words, "dataset.holdout=0.25", "local_epochs=1"]
    own, whole = Trainer(configured(*words, kept, *NODES[1:])), Trainer(configured(*words))
    node, state, same = Node(1, 4), RecordDict(), RecordDict()
    model, natives = own.flat.state.clone().numpy(), own.flat.natives()
    every, beside = whole.flat.state.clone().numpy(), whole.flat.natives()
    draw = np.random.default_rng(0)
    for number in (1, 2, 3):
        orders = TrainConfig(0.05, number)
        model = own.train(node, model, orders, natives, state)[0].copy()
        every = whole.train(node, every, orders, beside, same)[0].copy()
        natives, beside = own.natives(), whole.natives()
        expected = tensors(whole.flat)
        for name, tensor in tensors(own.flat).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)
        # The server's step: the same for both.
        model += np.float32(0.01) * draw.standard_normal(model.size, np.float32)
        model[own.trained :] = np.abs(model[own.trained :])
        own.flat.load(model, natives)
        shared = own.flat.state_dict()
        whole.flat.load(every, beside)
        for name, tensor in whole.flat.state_dict().items():
            if name in shared:
                tensor.copy_(shared[name])
        every = whole.flat.state.clone().numpy()
        found, wanted = (
            own.evaluate(node, model, natives, state),
            whole.evaluate(node, every, beside, same),
        )
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
        assert set(natives) <= set(beside)
    assert not {*own.flat.names, *natives} & set(own.flat.own())


@cache
def trainer_of(*words):
    """Return a trainer, and the model before training."""
    trainer = Trainer(configured(*WORDS, *words, *NODES, "local_epochs=2"))
    return trainer, trainer.flat.state.clone().numpy()


@given(st.sampled_from([1e30, 0.05]), st.integers(0, 3))
def test_a_training_that_diverges_leaves_the_personal_layers_as_they_were(lr, index):
    trainer, model = trainer_of("personal=[head.*]")
    node, state = Node(index, 4), RecordDict()
    trainer.train(node, model, TrainConfig(0.05, 1), trainer.flat.natives(), state)
    before = state[OWN][PERSONAL].numpy().copy()
    after, _ = trainer.train(node, model, TrainConfig(lr, 2), trainer.flat.natives(), state)
    assert np.isfinite(after).all() == (lr < 1)
    assert np.array_equal(state[OWN][PERSONAL].numpy(), before) == (lr > 1)


def test_the_proximal_term_does_not_hold_personal_layers():
    trainer, model = trainer_of("personal=[head.*]", "local=fedprox", "local.mu=19")
    node, state = Node(0, 4), RecordDict()
    first = trainer.flat.own()[PERSONAL]
    moved = trainer.train(node, model, TrainConfig(0.05, 1), trainer.flat.natives(), state)[0]
    size = trainer.trained
    assert (
        np.abs(moved[:size] - model[:size]).mean()
        < 0.1 * np.abs(state[OWN][PERSONAL].numpy() - first).mean()
    )


ALGORITHMS = {
    "flower": ["algorithm=fedavg", "compression.coder=raw", "downlink=full"],
    "ours": [*OURS, "compression.coder=raw"],
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_the_shared_part_is_sent(algorithm, kept, tmp_path):
    words = [*ALGORITHMS[algorithm], *NODES, "seed=3"]
    result, history = ran(tmp_path / "kept", kept, *words)
    trainer = Trainer(configured(*WORDS, kept, *words))
    shared, flat = 4 * trainer.layout.size, trainer.flat
    assert shared < 4 * Trainer(configured(*WORDS, *words)).layout.size
    last = history[-1]
    assert last["failures"] == 0
    assert 0 < last["uplink_bytes"] / 12 - shared < 80  # the payload's head, a counter
    assert 0 < last["downlink_bytes"] / 24 - shared < 80  # to train and to evaluate
    # The server's model has the initial personal layers, and another shared part.
    saved = load_file(tmp_path / "kept" / "model.safetensors")
    changed = {n for n, t in flat.module.state_dict().items() if not torch.equal(t, saved[n])}
    free = {"body.1.bias", "body.4.bias"}  # BatchNorm takes away what a bias adds
    assert changed | free == {*flat.names, *flat.natives()}
    # All values are those of the nodes.
    assert result["accuracy"] == last["node_accuracy"] > 0.3
    assert "test" not in result["data"]
    assert result["personal"] == configured(*WORDS, kept).personal
    write_card(tmp_path / "kept")
    assert "its own personal layers" in (tmp_path / "kept" / CARD).read_text()


def test_evaluations_equal_those_of_flowers_strategy(tmp_path):
    words = ["nodes=4", "rounds=4", "eval_every=2", "strategy.fraction_evaluate=1", "optimizer=sgd"]
    words = [*words, "dataset.holdout=0.25"]
    _, expected = ran(tmp_path / "theirs", "algorithm=fedavg", *words)
    _, found = ran(tmp_path / "ours", *OURS, "strategy.weighted_by_key=num-examples", *words)
    for row in (2, 4):
        assert found[row]["node_accuracy"] == pytest.approx(expected[row]["node_accuracy"])
        assert found[row]["node_loss"] == pytest.approx(expected[row]["node_loss"], rel=1e-4)
    assert not any("node_loss" in found[row] for row in (0, 1, 3))


HARD = {
    "both": ["algorithm=edgewire", "personal=[batchnorm,head.*]", "eval_every=2"],
    "flower": ["algorithm=fedavg_f2i_both", "personal=[head.*]", "local=kept_optimizer"],
    "faults": [
        "algorithm=edgewire", "personal=batchnorm", "network=lte", "network.loss=0.2", "timeout=3",
        "strategy.quorum=0.75", "network.crash=0.05", "network.rejoin_seconds=1",
        "compact_records=true",
    ],
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", HARD)
def test_a_resumed_run_has_the_nodes_personal_layers(name, tmp_path, monkeypatch):
    words = [*WORDS, *HARD[name], *NODES, "rounds=6"]
    expect_resumed(monkeypatch, tmp_path, words, 4, (2, 1))


def test_the_saved_model_says_that_its_personal_layers_are_untrained(tmp_path, caplog):
    ran(tmp_path / "run", "personal=[1.*]", "model.name=mlp", *NODES)
    predictor_of(str(tmp_path / "run"))
    ran(tmp_path / "next", f"model.file={tmp_path / 'run'}", "model.name=mlp")
    said = [line for line in caplog.messages if "its personal layers (1.*)" in line]
    assert len(said) == 1  # once a process and file
