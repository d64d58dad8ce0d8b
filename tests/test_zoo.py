"""A model's whole state is sent or constant: no state remains in a process after a message."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from edgewire.client.training import Trainer
from edgewire.task.models.parts import MODELS
from tests.local_runs import build_otherwise_at_nodes, expect_resumed, local_run
from tests.runs import history_of, model_bytes, result_of
from tests.zoo import ZOO, makers

SMALL = ["dataset=digits", "batch_size=16", "lr=0.02", "nodes=3"]
FEW = ["rounds=3", "local_steps=2"]
# The cases differ in what nodes send, what they receive, and how the server uses it.
KINDS = {
    "one flat vector, int8 both ways": [*FEW, "strategy.fraction_evaluate=1", "network=mixed"],
    "a memory": [*FEW, "algorithm=fedavg_topk", "downlink=f2i"],
    "an optimizer of Flower's": [*FEW, "strategy=fedadam"],
    "a robust one": [*FEW, "strategy=fedmedian"],
    "steps, followed": [
        "rounds=4",
        "algorithm=esgd",
        "strategy.fraction_train=0.67",
        "strategy.verify_every=2",
    ],
    "steps, not followed": ["rounds=4", "algorithm=dgc", "downlink=full"],
    "steps, robust": ["rounds=4", "algorithm=esgd", "strategy.mean=median"],
    "low rank": ["rounds=4", "algorithm=powersgd"],
    "pushes, by parameter": ["algorithm=adacomp", "strategy.pushes=12", "eval_every=4"],
    "pushes, mixed": ["algorithm=fedasync", "strategy.pushes=9", "local_steps=2"],
    "pushes, buffered": ["algorithm=fedbuff", "strategy.pushes=12", "local_steps=2"],
}


def run(folder, words, **options):
    """Make a run without failures; return its model as bytes, and its history."""
    local_run(folder, *words, **options)
    assert result_of(folder)["failures"] == 0
    assert not result_of(folder)["diverged"]
    return model_bytes(folder), history_of(folder)


def of(name):
    return [*SMALL, "model=mlp", f"model.name={name}"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Register the zoo's models in the same way as the models of `edgewire/task/models`."""
    for name, make in makers().items():
        monkeypatch.setitem(MODELS, name, make)


@pytest.fixture
def afresh(monkeypatch):
    """Build a new trainer for every message, as in a new process."""
    monkeypatch.setattr("edgewire.client.app.trainer_for", Trainer)


@pytest.fixture
def start(tmp_path):
    """Return a function that makes a run with these overrides in a new folder."""
    count = 0

    def call(*words, **options):
        nonlocal count
        count += 1
        return run(tmp_path / str(count), words, **options)

    return call


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_each_message_may_be_served_by_a_new_process(kind, start, request, tmp_path):
    words = [*of("zoo_all"), *KINDS[kind]]
    shared = start(*words)
    plain = ZOO["zoo_all"](64, 10)
    before = {key: tensor.clone() for key, tensor in plain.state_dict().items()}
    saved = load_file(tmp_path / "1" / "model.safetensors")
    plain.load_state_dict(saved, assign=True)  # an expanded tensor cannot be copied into
    assert saved.keys() == before.keys()
    for key, tensor in saved.items():
        assert (tensor.shape, tensor.dtype) == (before[key].shape, before[key].dtype)
        if key.endswith(("count", "num_batches_tracked", "doubles", "same")):
            assert tensor.abs().sum() > 0, key
    assert start(*words, workers=2) == shared
    request.getfixturevalue("afresh")
    assert start(*words) == shared


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["synthetic_gradients", "split_backprop"])
def test_cut_models_keep_all_of_their_state(algorithm, start, tmp_path):
    words = [*of("zoo_row"), f"algorithm={algorithm}", "rounds=6", "strategy.cuts=[1,2]"]
    words += ["lr=0.001", "batch_size=32", "eval_every=3"]
    assert start(*words) == start(*words, workers=3)
    saved = load_file(tmp_path / "1" / "model.safetensors")
    MODELS["zoo_row"](1, 8, 10).load_state_dict(saved, strict=True)
    counts = [tensor for name, tensor in saved.items() if name.endswith("count")]
    assert [int(count) for count in counts] == [6, 6]
    assert saved["2.num_batches_tracked"] == 6


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["a memory", "steps, followed", "pushes, buffered"])
def test_a_run_resumes_with_its_whole_state(kind, tmp_path, monkeypatch):
    words = [*of("zoo_all"), *KINDS[kind], "checkpoint_every=1"]
    expect_resumed(monkeypatch, tmp_path, words, row=2 if "pushes" in kind else 3)


def test_nodes_with_other_constants_receive_the_servers(start, monkeypatch):
    words = [*of("zoo_masked"), "rounds=3", "local_steps=2"]
    usual = start(*words)
    build_otherwise_at_nodes(monkeypatch, "zoo_masked", lambda module: module.turned.mul_(1.0001))
    assert start(*words) == usual


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"steps": 3}

    def set_extra_state(self, state):
        pass


def with_layer(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def with_buffer(tensor):
    module = nn.Linear(64, 10)
    module.register_buffer("odd", tensor)
    return with_layer(module)


def alike():
    one, two = nn.Linear(64, 64), nn.Linear(64, 64)
    two.weight.data = one.weight.data
    return with_layer(one, two, nn.Linear(64, 10))


REFUSED = {
    "float64": (lambda: with_layer(nn.Linear(64, 10)).double(), "must be float32"),
    "extra": (lambda: with_layer(Extra(64, 10)), "_extra_state cannot travel"),
    "lazy": (lambda: with_layer(nn.LazyLinear(10)), "has no shape yet"),
    "sparse": (lambda: with_buffer(torch.eye(3).to_sparse()), "sparse_coo (3, 3), which"),
    "nan": (lambda: with_buffer(torch.tensor([1.0, torch.nan])), "holds NaN"),
    "alike": (alike, "share memory and are two"),
    "nothing": (lambda: with_layer(nn.Linear(64, 10)).requires_grad_(False), "no"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", REFUSED)
def test_state_that_cannot_be_sent_gives_one_line_before_the_run(name, cli, monkeypatch, tmp_path):
    build, said = REFUSED[name]
    monkeypatch.setitem(MODELS, "zoo_odd", lambda *shape: build())
    words = [*of("zoo_odd"), "rounds=1", "engine.workers=1", f"hydra.run.dir={tmp_path}"]
    code, printed = cli(*words)
    assert code == 2
    assert said in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert not (tmp_path / "result.json").exists()
