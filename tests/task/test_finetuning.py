"""Weights from a file, parameters that are frozen by name, and models in half precision."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edgewire.task.errors import TaskError
from edgewire.task.finetuning import (
    LoRA,
    freeze_others,
    hold_frozen,
    in_dtype,
    load_tensors,
    personal_names,
    tensors_in,
)
from edgewire.task.model_file import sha256_of


def load_file(module, file, sha256=None, new=None):
    load_tensors(module, tensors_in(file, sha256), file, new)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        (["2.*"], {"2.weight", "2.bias"}),
        (["*.bias"], {"0.bias", "2.bias"}),
        (["0.weight", "[2].bias"], {"0.weight", "2.bias"}),
        (["*"], {"0.weight", "0.bias", "2.weight", "2.bias"}),
    ],
)
def test_only_parameters_that_match_a_pattern_are_trained(patterns, trained):
    module = net().requires_grad_(False)
    freeze_others(module, patterns)
    assert {name for name, p in module.named_parameters() if p.requires_grad} == trained


@pytest.mark.parametrize("pattern", ["0.*", "1.*"])
def test_a_shared_parameter_is_trained_by_any_of_its_names(pattern):
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    freeze_others(module, [pattern])
    assert module[0].weight.requires_grad
    assert [module[0].bias.requires_grad, module[1].bias.requires_grad].count(True) == 1


def test_a_pattern_without_a_parameter_is_refused():
    with pytest.raises(TaskError, match=r"trainable=head\.\* matches nothing; there are 0\.w"):
        freeze_others(net(), ["2.*", "head.*"])


def tied():
    """Return a model with a weight and a BatchNorm that each two layers share, frozen ones too."""
    norm, embedding, head = nn.BatchNorm1d(4), nn.Embedding(4, 4), nn.Linear(4, 4)
    head.weight = embedding.weight
    parts = {"embed": embedding, "norm": norm, "again": norm, "base": nn.Linear(4, 4), "head": head}
    module = nn.ModuleDict({**parts, "frozen": nn.BatchNorm1d(4)})
    module["frozen"].requires_grad_(False)
    hold_frozen(module)
    return module


@pytest.mark.parametrize(
    ("patterns", "part"),
    [
        (["head.*", "tail"], "personal=tail matches nothing; there are frozen.num_batches"),
        (["head.weight"], "personal=head.weight is also embed.weight, one tensor of two layers"),
        (["norm.running_mean"], "personal=norm.running_mean is also again.running_mean"),
        (["frozen.*"], "names frozen tensors alone, which nodes share"),
        (["*"], "names all that is trained, and nothing would be sent"),
        (["batchnorm", "embed.*", "head.*", "base.*"], "names all that is trained"),
    ],
)
def test_personal_patterns_that_do_not_fit_are_one_line(patterns, part):
    with pytest.raises(TaskError) as caught:
        personal_names(tied(), patterns)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batchnorm_names_all_tensors_of_all_batchnorm_layers():
    inside = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    layers = ("norm", "again", "frozen")
    assert personal_names(tied(), ["batchnorm"]) == {f"{a}.{b}" for a in layers for b in inside}
    assert personal_names(tied(), None) == frozenset()
    with pytest.raises(TaskError, match="the model has no BatchNorm layer"):
        personal_names(net(), ["batchnorm"])


def test_a_file_sets_the_tensors_that_it_holds(tmp_path):
    file = str(tmp_path / "base.safetensors")
    save_file({"0.weight": torch.full((4, 3), 7.0)}, file)
    module, plain = net(), net()
    load_file(module, file, sha256_of(file))
    assert torch.equal(module[0].weight, torch.full((4, 3), 7.0))
    assert torch.equal(module[2].weight, plain[2].weight)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"1.weight": torch.zeros(4, 3)}, r"1\.weight \(4, 3\) of floats, which is missing in the"),
        ({"0.weight": torch.zeros(3, 4)}, r"\(3, 4\) of floats, which is \(4, 3\) of floats in"),
        (
            {"0.weight": torch.ones(4, 3, dtype=torch.int64)},
            r"\(4, 3\) of integers, which is \(4, 3\) of floats",
        ),
        ({"0.weight": torch.full((4, 3), torch.nan)}, "has NaN or infinity in 0.weight"),
        ({}, "holds no tensors"),
        (None, "is no safetensors file"),
    ],
)
def test_a_file_of_another_model_is_refused(tensors, said, tmp_path):
    file = tmp_path / "base.safetensors"
    file.write_bytes(b"?" * 99) if tensors is None else save_file(tensors, str(file))
    module, plain = net(), net()
    with pytest.raises(TaskError, match=said) as caught:
        load_file(module, str(file), None)
    assert "\n" not in str(caught.value)
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True)
    )


def test_parameters_that_a_file_lacks_are_named_once(tmp_path, caplog):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

    file = str(tmp_path / "base.safetensors")
    save_file({"second.weight": torch.ones(3, 3), "first.bias": torch.ones(3)}, file)
    for _ in range(2):
        load_file(Tied(), file, None)
    assert [r.getMessage().partition("lacks ")[2] for r in caplog.records] == [
        "1 parameters, which keep their random values: second.bias"
    ]


def test_tensors_of_a_pattern_are_new_and_the_others_come_from_the_file(tmp_path, caplog):
    """`model.new=` leaves out a head of another shape; `model.file=` may be a run's folder."""
    tensors = {"0.weight": torch.ones(4, 3), "0.bias": torch.ones(4), "2.weight": torch.ones(9, 4)}
    save_file(tensors, str(tmp_path / "model.safetensors"))
    module, plain = net(), net()
    with pytest.raises(
        TaskError, match=r"""\(9, 4\) of floats, which is .* out by 'model\.new=\["2\.\*"\]'$"""
    ):
        load_file(module, str(tmp_path))
    with pytest.raises(TaskError, match=r"model\.new=head\.\* matches nothing; there are 2\."):
        load_file(module, str(tmp_path), new=["2.*", "head.*"])
    load_file(module, str(tmp_path), sha256_of(str(tmp_path)), ["2.*"])
    assert torch.equal(module[0].weight, torch.ones(4, 3))
    assert torch.equal(module[2].weight, plain[2].weight)
    assert not caplog.records


def test_a_file_with_other_contents_than_the_runs_is_refused(tmp_path):
    file = tmp_path / "base.safetensors"
    save_file({"0.bias": torch.zeros(4)}, str(file))
    before = sha256_of(str(file))
    save_file({"0.bias": torch.ones(4)}, str(file))
    with pytest.raises(TaskError, match="copy the run's file to this machine"):
        load_file(net(), str(file), before)


@pytest.mark.parametrize("path", ["none", ".", "a\0b", "x" * 5000])
def test_a_file_that_is_not_there_is_one_line(path, tmp_path):
    with pytest.raises(TaskError, match=r"^model\.file=.*$"):
        sha256_of(str(tmp_path / path))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_model_takes_and_gives_float32(dtype):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, given):
            return {"y": self.inner(given["x"]), "tokens": given["tokens"]}

    module = in_dtype(Two(), dtype)
    x = torch.randn(5, 3)
    given = module({"x": x, "tokens": torch.arange(5)})
    assert (given["y"].dtype, given["tokens"].dtype) == (torch.float32, torch.int64)
    torch.testing.assert_close(given["y"], net()(x), rtol=0.05, atol=0.05)
    assert module.inner[0].weight.dtype == getattr(torch, dtype)


@pytest.mark.system
def test_lora_trains_two_small_matrices_a_layer():
    pytest.importorskip("peft")
    module = LoRA(r=2).add(net())
    shapes = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
    assert sorted(shapes.values()) == [(2, 2), (2, 3), (2, 4), (4, 2)]
    x = torch.randn(5, 3)
    assert torch.equal(module(x), net()(x))  # B begins with zeros
    with pytest.raises(TaskError, match="adapter: ") as caught:
        LoRA(target_modules=["nothing"]).add(net())
    assert "\n" not in str(caught.value)
