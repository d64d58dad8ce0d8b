"""A cut model trains like the uncut model, bit for bit, for every cut.

A cut model is divided into segments; each segment is on another node and trains as a `Stage`.
"""

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import edgewire.pipeline.node.stage
from edgewire.client.batches import Samples
from edgewire.client.node import Node
from edgewire.compression.base import PayloadError
from edgewire.conf.build import data_of, model_of, optimizer_of
from edgewire.pipeline.gradient_predictor import FORMS
from edgewire.pipeline.node.stage import Place, Stage, TrainedModule
from edgewire.task.flat_model import FlatModel
from tests.local_runs import local_run
from tests.runs import configured, history_of, model_bytes
from tests.same import expect_same

SPLIT = ("algorithm=split_backprop", "batch_size=64")  # a power of two: means are exact


def dropping(*_):
    """Return a model in which three modules use dropout and one counts batches in an integer."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.BatchNorm1d(32, momentum=None),  # the mean over all batches uses the counter
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(32, 24),
        nn.PReLU(),
        nn.Dropout(0.2),
        nn.Linear(24, 10),
    )


@pytest.fixture
def model(monkeypatch):
    """Return a function that makes stages use another model than the configured one."""

    def use(make):
        monkeypatch.setattr(edgewire.pipeline.node.stage, "model_of", make)
        return make

    return use


def stages_of(config, cuts, make=model_of):
    data = data_of(config)
    whole = make(config, data)
    states = dict(whole.state_dict())
    found = []
    for segment in range(len(cuts) + 1):
        stage = Stage(config, data, Place(segment, tuple(cuts)))
        vector = torch.cat([states[name].flatten() for name in stage.part.names])
        names = [name for name in states if "num_batches" in name]
        assert all(int(states[name]) == 0 for name in names)
        beside = {name: np.zeros_like(array) for name, array in stage.beside().items()}
        stage.load({"segment": vector.numpy().copy()}, beside)
        found.append(stage)
    return found


def batches_of(config, count):
    samples = Samples(config, data_of(config), whole=True)
    return [samples.batch(Node(0, 1), number) for number in range(count)]


def backpropagate(stages, x, y, number, lr, micros=1):
    """Take one step with all stages; each stage passes its gradients to the stage before it."""
    for micro in range(micros):
        key = f"{number}.{micro}"
        part, labels = x.tensor_split(micros)[micro], y.tensor_split(micros)[micro]
        h, first = stages[0].segment.to_wire(part), micro == 0
        for stage in stages[:-1]:
            h = stage.forward(h, key)
        given = stages[-1].loss(h, labels, key, first).back
        for stage in reversed(stages[:-1]):
            given = stage.backward(key, given, None, first)
    for stage in stages:
        stage.finish(lr)


def joined(stages):
    return {
        name: value
        for stage in stages
        for name, value in zip(stage.part.names, stage.main.flat.state_dict().values(), strict=True)
    }


@pytest.mark.few(3)
@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 3), (1, 2, 3)])
@pytest.mark.parametrize("name", ["four_layers", "four_layers_plain"])
def test_with_true_gradients_training_is_backpropagation_bit_for_bit(name, cuts):
    config = configured(*SPLIT, f"model={name}")
    data = data_of(config)
    flat = FlatModel(model_of(config, data))
    optimizer = optimizer_of(config, [flat.parameters])
    flat.module.train()
    stages = stages_of(config, cuts)
    for number, (x, y) in enumerate(batches_of(config, 5)):
        flat.zero_grad()
        nn.functional.cross_entropy(flat.module(x), y).backward()
        optimizer.step()
        backpropagate(stages, x, y, number, config.lr)
    expect_same(joined(stages), flat.state_dict())


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2)])
def test_dropout_batchnorm_and_counters_are_those_of_the_uncut_model(model, cuts):
    make = model(dropping)
    config = configured(*SPLIT)
    whole, cut = stages_of(config, (), make), stages_of(config, cuts, make)
    for number, (x, y) in enumerate(batches_of(config, 5)):
        whole[0].train(whole[0].segment.to_wire(x), y, number, config.lr)
        backpropagate(cut, x, y, number, config.lr)
    expect_same(joined(cut), joined(whole))
    assert [int(v) for stage in cut for v in stage.beside().values()] == [5]


class Perfect(nn.Module):
    """A prediction module that returns the true gradient, computed with the segments after it."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def forward(self, h, labels):
        with torch.enable_grad():
            given = h.detach().requires_grad_()
            x = given
            for stage in self.after:
                segment = copy.deepcopy(stage.segment)
                x = segment(segment.from_wire(x) if x is given else x)
            nn.functional.cross_entropy(x, labels, reduction="sum").backward()
        return given.grad


@pytest.mark.parametrize("name", ["four_layers", "eight_layers"])
def test_a_perfect_module_in_sequence_is_backpropagation_bit_for_bit(name):
    config = configured("algorithm=synthetic_gradients", "batch_size=64", f"model={name}")
    cuts = (1, 2, 3) if name == "four_layers" else (2, 5)
    whole, cut = stages_of(config, ()), stages_of(config, cuts)
    for stage in cut[:-1]:
        after = Perfect(cut[stage.place.segment + 1 :])
        stage.module = SimpleNamespace(flat=SimpleNamespace(module=after))
    for number, (x, y) in enumerate(batches_of(config, 4)):
        whole[0].train(whole[0].segment.to_wire(x), y, number, config.lr)
        h = cut[0].segment.to_wire(x)
        for stage in cut:
            h = stage.train(h, y, number, config.lr).output
    expect_same(joined(cut), joined(whole))


def test_micro_batches_add_up_to_the_mini_batch():
    config = configured(*SPLIT, "model=four_layers_plain")
    whole, cut = stages_of(config, (1, 2)), stages_of(config, (1, 2))
    for number, (x, y) in enumerate(batches_of(config, 3)):
        backpropagate(whole, x, y, number, config.lr)
        backpropagate(cut, x, y, number, config.lr, micros=4)
    for name, value in joined(whole).items():
        torch.testing.assert_close(joined(cut)[name], value, rtol=0, atol=2e-4)


def test_a_process_without_the_forward_pass_can_do_the_backward_pass():
    """A process that has not done the forward pass repeats it before the backward pass.

    BatchNorm still counts each batch once, and dropout drops the same units.
    """
    config = configured(*SPLIT)
    whole, cut = stages_of(config, (1, 3)), stages_of(config, (1, 3))
    for number, (x, y) in enumerate(batches_of(config, 3)):
        backpropagate(whole, x, y, number, config.lr)
        key, inputs, h = f"{number}.0", {}, cut[0].segment.to_wire(x)
        for stage in cut[:-1]:
            inputs[stage.place.segment] = h
            h = stage.forward(h, key)
            stage.forget(number + 1)
        given = cut[-1].loss(h, y, key, True).back
        for stage in reversed(cut[:-1]):
            given = stage.backward(key, given, partial(inputs.get, stage.place.segment), True)
        for stage in cut:
            stage.finish(config.lr)
    expect_same(joined(cut), joined(whole))


@pytest.mark.parametrize("module", sorted(FORMS))
def test_a_stage_resumes_from_its_copy_unchanged(module):
    words = ("batch_size=64", f"strategy.module={module}")
    config = configured("algorithm=synthetic_gradients", *words)
    data = data_of(config)
    one = stages_of(config, (1,))[0]
    given = batches_of(config, 6)
    target = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))

    def work(stage, numbers):
        for number in numbers:
            x, y = given[number]
            h = stage.train(stage.segment.to_wire(x), y, number, config.lr).output
            stage.learn(h, y, target, config.lr)

    work(one, range(3))
    other = Stage(config, data, one.place)
    other.load({name: a.copy() for name, a in one.arrays(whole=True).items()}, one.beside())
    work(one, range(3, 6))
    work(other, range(3, 6))
    expect_same(one.arrays(whole=True), other.arrays(whole=True))


def test_a_module_learns_its_target():
    config = configured("algorithm=synthetic_gradients", "batch_size=64")
    stage = stages_of(config, (1,))[0]
    (x, y), *_ = batches_of(config, 1)
    h = stage.train(stage.segment.to_wire(x), y, 0, 1e-3).output
    # The target depends on the label.
    target = torch.randn(10, 128, generator=torch.Generator().manual_seed(0))[y]
    errors = [stage.learn(h, y, target, 1e-2) for _ in range(60)]
    assert errors[0] == pytest.approx(1)  # the module predicts zero at first
    assert errors[-1] < 0.1


@pytest.mark.parametrize("module", sorted(FORMS))
@pytest.mark.parametrize("spoiled", ["input", "weights", "module"])
def test_values_that_are_not_finite_are_refused_and_the_segment_stays(spoiled, module):
    words = ("batch_size=64", f"strategy.module={module}")
    config = configured("algorithm=synthetic_gradients", *words)
    stage = stages_of(config, (1, 2))[1]
    torch.manual_seed(0)
    x, y = torch.randn(64, 128), torch.randint(10, (64,))
    stage.train(x, y, 0, 1e-3)
    if spoiled == "input":
        x = x.clone()
        x[3, 7] = 1e38
        x[4, 7] = -1e38
    elif spoiled == "weights":
        stage.main.flat.state[5] = float("nan")
    else:
        stage.module.flat.state[-1] = float("inf")
    before = {name: a.copy() for name, a in stage.arrays(whole=True).items()}
    beside = {name: a.copy() for name, a in stage.beside().items()}
    with pytest.raises(PayloadError, match="not finite"):
        stage.train(x, y, 1, 1e-3)
    expect_same(stage.arrays(whole=True), before)
    expect_same(stage.beside(), beside)


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["synthetic_gradients", "split_backprop"])
def test_a_device_with_its_own_memory_trains_the_same_stages(algorithm, tmp_path, monkeypatch):
    words = [f"algorithm={algorithm}", "rounds=12", "eval_every=6"]
    local_run(tmp_path / "host", *words)
    made = []
    init = Stage.__init__
    monkeypatch.setattr(Stage, "__init__", lambda *given: (made.append(given[-1]), init(*given))[1])
    monkeypatch.setattr("edgewire.pipeline.node.stage.in_host_memory", lambda tensor: False)
    local_run(tmp_path / "other", *words)
    assert len(made) == len(set(made))  # a stage is made once, and not for each message
    assert model_bytes(tmp_path / "other") == model_bytes(tmp_path / "host")
    assert history_of(tmp_path / "other") == history_of(tmp_path / "host")


@pytest.mark.parametrize("fused", [True, False])
def test_a_loaded_optimizer_counts_steps_where_torch_does(fused):
    """On a GPU a fused optimiser needs its counter there, and another one needs it on the CPU.

    The device "meta" computes nothing, but it keeps apart which tensor is where.
    """
    config = configured("algorithm=synthetic_gradients", f"optimizer.fused={str(fused).lower()}")
    trained = TrainedModule(nn.Linear(3, 2), config)
    trained.flat.collect_grad()
    trained.step(1e-3, 1)
    arrays = {name: a.copy() for name, a in trained.arrays("state", whole=True).items()}
    other = TrainedModule(nn.Linear(3, 2), replace(config, device="meta"))
    other.load("state", arrays)
    state = other.optimizer.state[other.flat.parameters]
    assert {state[key].device.type for key in ("exp_avg", "exp_avg_sq")} == {"meta"}
    assert state["step"].device.type == ("meta" if fused else "cpu")
    assert state["step"].shape == ()
