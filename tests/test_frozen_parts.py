"""Frozen parameters never travel; parameters in half precision have float32 masters."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from edgewire.client.training import Trainer
from edgewire.task.errors import TaskError
from edgewire.task.finetuning import freeze_others, hold_frozen
from edgewire.task.flat_model import FlatModel, tensors_of
from edgewire.task.models.parts import MODELS
from tests.local_runs import build_otherwise_at_nodes, local_run
from tests.runs import configured, history_of, result_of

WORDS = ["dataset=digits", "nodes=3", "rounds=3", "lr=0.05", "trainable=[head.*]", "eval_every=3"]
HEAD = 4 * (64 * 10 + 10)  # bytes of the trained parameters


class Named(nn.Module):
    def __init__(self, channels, size, classes):
        super().__init__()
        pixels = nn.Linear(channels * size**2, 512)
        self.base = nn.Sequential(nn.Flatten(), pixels, nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.base(x))


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setitem(MODELS, "named", Named)


def bytes_of(row, side):
    return sum(row[f"{side}_{kind}bytes"] for kind in ("", "other_", "header_"))


def ran(tmp_path, *words, **options):
    local_run(tmp_path, "model=mlp", "model.name=named", *WORDS, *words, **options)
    return result_of(tmp_path), history_of(tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["fedavg", "esgd"])
def test_a_round_costs_at_most_a_tenth_more_than_the_trained_parameters(algorithm, tmp_path):
    words = [f"algorithm={algorithm}", "compression=none", "downlink=full", "compression.coder=raw"]
    result, history = ran(tmp_path, *words)
    assert result["parameters"] == HEAD // 4
    last = history[-1]
    for side in ("uplink", "downlink"):
        assert HEAD < bytes_of(last, side) / 9 <= 1.1 * HEAD  # 9 messages; the first ones as others
        assert last[f"{side}_bytes_float32"] / 9 < 1.3 * HEAD  # of what Flower would send, too
    small, _ = ran(tmp_path / "int4", f"algorithm={algorithm}", "compression=int4")
    assert small["uplink_bytes"] / 9 < HEAD / 6


def test_a_node_with_another_base_receives_the_servers_once(tmp_path, monkeypatch):
    _, usual = ran(tmp_path / "usual")

    build_otherwise_at_nodes(
        monkeypatch, "named", lambda module: module.base[1].weight.data.mul_(1.0001)
    )
    result, history = ran(tmp_path / "other", "rounds=4", "eval_every=4")
    sent = [row["downlink_bytes"] for row in history]
    rounds = [after - before for before, after in pairwise(sent)]
    base = 4 * 64 * 512
    assert result["failures"] == 3  # one message to each node
    assert rounds[0] < base < rounds[1]
    assert max(rounds[2:]) < base
    assert history[-1]["accuracy"] == pytest.approx(usual[-1]["accuracy"], abs=0.1)


def test_a_file_replaces_the_seeds_weights_and_must_be_the_same_everywhere(tmp_path, monkeypatch):
    file = tmp_path / "base.safetensors"
    torch.manual_seed(5)
    model = Named(1, 8, 10)
    save_file(model.state_dict(), str(file))
    ran(tmp_path / "run", f"model.file={file}")
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(found["base.1.weight"], model.base[1].weight)
    assert not torch.equal(found["head.weight"], model.head.weight)
    monkeypatch.setattr("edgewire.conf.load.sha256_of", lambda file: "0" * 64)
    with pytest.raises(TaskError, match="copy the run's file"):
        ran(tmp_path / "other", f"model.file={file}", "seed=1")


class Normed(nn.Module):
    """A backbone with BatchNorm, with and without parameters, counters and dropout; and a head."""

    def __init__(self, channels, size, classes):
        super().__init__()
        self.base = nn.Sequential(
            nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.Dropout(0.5), nn.ReLU()
        )
        self.norm = nn.BatchNorm2d(8, affine=False)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * (size - 2) ** 2, 16), nn.BatchNorm1d(16),
            nn.Linear(16, classes),
        )  # fmt: skip

    def forward(self, x):
        return self.head(self.norm(self.base(x)))


def normed_run(folder, monkeypatch, *words):
    """Return which tensors a run has changed, and the history's last row."""
    monkeypatch.setitem(MODELS, "named", Normed)
    _, history = ran(folder, "algorithm=fedavg", *words)
    after = load_file(folder / "model.safetensors")
    before = Trainer(configured("model=mlp", "model.name=named", *WORDS, *words)).flat.module
    names = [name for name, t in before.state_dict().items() if not torch.equal(t, after[name])]
    return names, history[-1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words", [[], ["algorithm=esgd"], ["strategy=asynchronous", "strategy.pushes=9"]]
)
def test_the_statistics_of_frozen_layers_neither_change_nor_travel(words, tmp_path, monkeypatch):
    changed, row = normed_run(tmp_path / "held", monkeypatch, *words)
    assert changed
    assert all(name.startswith("head.") for name in changed)
    assert "head.3.running_mean" in changed
    assert row["failures"] == 0
    adapting, other = normed_run(tmp_path / "adapting", monkeypatch, *words, "frozen_eval=false")
    assert {"base.1.running_var", "norm.running_mean"} < {*adapting}
    assert sum(bytes_of(row, side) for side in ("uplink", "downlink")) < sum(
        bytes_of(other, side) for side in ("uplink", "downlink")
    )


@given(st.sets(st.sampled_from([0, 1, 3, 6]), max_size=3), st.booleans(), st.booleans())
def test_a_module_is_in_training_mode_if_something_in_it_is_trained(frozen, named, training):
    module = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Sequential(nn.Linear(4, 4),
        nn.Dropout()), nn.BatchNorm1d(4, affine=False), nn.ReLU(), nn.Linear(4, 2),
    )  # fmt: skip
    module.train(training)
    patterns = [f"{place}.*" for place in (0, 1, 3, 6) if place not in frozen]
    if named:
        freeze_others(module, patterns)
        hold_frozen(module, patterns)
    else:
        for place in frozen:
            module[place].requires_grad_(False)
        hold_frozen(module)
    held = {place for place in (0, 1, 3, 6) if place in frozen} | (
        {4} if named and patterns else set()
    )
    assert {place for place, each in enumerate(module) if not each.training} == held
    assert module[3][1].training == (3 not in held)
    FlatModel(module)
    layers = {name.partition(".")[0] for name, _ in tensors_of(module).statistics}
    assert layers == {str(place) for place in {1, 4} - held}
