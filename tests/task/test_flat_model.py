"""A model's tensors as one flat vector, and its native tensors beside it."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgewire.task.errors import TaskError
from edgewire.task.flat_model import FlatModel
from edgewire.task.models import build_model
from tests.same import expect_same

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def train(module, optimiser, zero_grad, channels, size, steps=3):
    random = torch.Generator().manual_seed(7)
    for _ in range(steps):
        images = torch.randn(8, channels, size, size, generator=random)
        labels = torch.randint(10, (8,), generator=random)
        zero_grad()
        nn.functional.cross_entropy(module(images), labels).backward()
        optimiser.step()


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(("name", "channels", "size"), [("lenet5", 1, 28), ("four_layers", 3, 16)])
def test_training_through_it_equals_training_the_plain_module(name, channels, size, optimiser):
    plain = build_model(name, channels=channels, size=size, classes=10, seed=3)
    flat = FlatModel(copy.deepcopy(plain))
    make = OPTIMISERS[optimiser]

    plain_optimiser = make(plain.parameters())
    train(plain, plain_optimiser, plain_optimiser.zero_grad, channels, size)
    train(flat.module, make([flat.parameters]), flat.zero_grad, channels, size)

    expected = plain.state_dict()
    for key, value in flat.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
    images = torch.randn(4, channels, size, size)
    with torch.no_grad():
        torch.testing.assert_close(
            flat.module.eval()(images), plain.eval()(images), rtol=1e-4, atol=1e-5
        )


def test_layout_is_parameters_then_float_buffers():
    module = build_model("resnet18", channels=3, size=32, classes=10)
    parameters = dict(module.named_parameters())
    buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
    expected = torch.cat(
        [t.detach().flatten().clone() for t in (*parameters.values(), *buffers.values())]
    )

    flat = FlatModel(module)

    assert flat.names == (*parameters, *buffers)
    assert flat.shapes == tuple(tuple(t.shape) for t in (*parameters.values(), *buffers.values()))
    assert flat.num_parameters == sum(p.numel() for p in parameters.values())
    assert flat.state.dtype == torch.float32
    assert torch.equal(flat.state, expected)
    # Everything except BatchNorm's counters, which stay local.
    assert set(module.state_dict()) - set(flat.state_dict()) == {
        n for n in module.state_dict() if n.endswith("num_batches_tracked")
    }


LAYERS = ("0", "1", "2", "4", "6")


@given(st.sets(st.sampled_from(LAYERS), max_size=4), st.sets(st.sampled_from(LAYERS)))
def test_personal_tensors_are_kept_apart_from_what_is_sent(kept, frozen):
    """Whatever is personal or frozen, two nodes' tensors never mix."""
    module = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2, momentum=None), nn.BatchNorm2d(2, affine=False),
        nn.Flatten(), nn.Linear(18, 3), nn.ReLU(), nn.Linear(3, 10),
    )  # fmt: skip
    for layer in frozen:
        module[int(layer)].requires_grad_(False)
    every = [name for name in module.state_dict() if name.partition(".")[0] in kept]
    plain, flat = FlatModel(copy.deepcopy(module)), FlatModel(module, personal=every)
    names = {*plain.names, *plain.natives()}
    free = {n for n, p in module.named_parameters() if not p.requires_grad}
    assert {*flat.names, *flat.natives()} == names - {n for n in every if n not in free}
    assert flat.num_parameters == plain.num_parameters == flat.parameters.numel()
    assert flat.keeps == bool(names - {*flat.names, *flat.natives()})
    first = {n: t.clone() for n, t in module.state_dict().items()}
    if flat.num_parameters:
        train(module, torch.optim.SGD([flat.parameters], 0.1), flat.zero_grad, 1, 4)
    own, state, natives = flat.own(), flat.state.clone(), flat.natives()
    after = {n: t.clone() for n, t in module.state_dict().items()}
    flat.load(state, natives)  # another node's turn
    for name, tensor in module.state_dict().items():
        sent = name in {*flat.names, *natives}
        assert torch.equal(tensor, (after if sent else first)[name]), name
    flat.load(state, natives, own)
    idle = {"2.num_batches_tracked"}  # a counter that is not used
    expected = {n: t for n, t in after.items() if n not in idle}
    expect_same({n: t for n, t in module.state_dict().items() if n not in idle}, expected)


def test_collected_gradients_equal_those_in_views():
    """Earlier gradients do not matter, and a parameter without a gradient gets 0."""
    flat = FlatModel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 5)))
    images = torch.randn(2, 1, 4, 4).to(memory_format=torch.channels_last)
    flat.zero_grad()
    flat.module(images).square().sum().backward()
    expected = flat.gradient.clone()
    for _ in range(2):
        flat.drop_grad()
        flat.module(images).square().sum().backward()
        assert torch.equal(flat.collect_grad(), expected)
    flat.drop_grad()
    flat.module[0](images).sum().backward()
    count = sum(p.numel() for p in flat.module[2].parameters())
    collected = flat.collect_grad()
    assert collected[:-count].any()
    assert not collected[-count:].any()
    assert all(p.grad is None for p in flat.module.parameters())
    flat.parameters.grad = None
    flat.zero_grad()
    assert not flat.gradient.any()
    flat.module(images).square().sum().backward()
    assert torch.equal(flat.parameters.grad, expected)


@pytest.mark.parametrize("kind", ["tensor", "array", "read-only array"])
def test_load_copies_in_place(kind):
    flat = FlatModel(build_model("mlp", channels=1, size=8, classes=3))
    values = np.arange(flat.state.numel(), dtype=np.float32)
    if kind == "read-only array":
        values.flags.writeable = False
    address = flat.state.data_ptr()
    flat.load(torch.from_numpy(values.copy()) if kind == "tensor" else values)
    assert flat.state.data_ptr() == address
    assert torch.equal(next(flat.module.parameters()).flatten(), torch.arange(128 * 64).float())
    assert np.array_equal(flat.state.numpy(), values)
    flat.state.zero_()
    assert values[-1] == flat.state.numel() - 1


@pytest.mark.parametrize("shape", [(1,), (3,), (1, 8832)])
def test_load_refuses_another_shape(shape):
    flat = FlatModel(build_model("mlp", channels=1, size=8, classes=3))
    with pytest.raises(ValueError, match="shape"):
        flat.load(torch.zeros(shape))
    with pytest.raises(ValueError, match="shape"):
        flat.load(np.zeros(shape, np.float32))


class Odd(nn.Module):
    """A model with shared weights, a frozen layer, and shared, local and integer buffers."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("mean", torch.ones(4))
        self.a.register_buffer("same", self.mean)
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * self.frozen(self.b(self.a(x))) + self.mean * self.mask


def test_shared_frozen_scalar_and_local_tensors():
    plain = Odd()
    flat = FlatModel(copy.deepcopy(plain))
    assert flat.names == (
        "scale", "a.weight", "a.bias", "b.bias",
    )  # fmt: skip
    assert flat.num_parameters == 1 + 16 + 4 + 4
    assert list(flat.natives()) == ["frozen.weight", "frozen.bias", "mean", "count"]
    module = flat.module
    assert module.b.weight is module.a.weight
    assert module.a.same is module.mean

    images = torch.randn(5, 4)
    for model in (plain, module):
        model(images).square().sum().backward()
    torch.testing.assert_close(module.a.weight.grad, plain.a.weight.grad)
    torch.optim.SGD([flat.parameters], lr=0.1, weight_decay=0.1).step()
    torch.optim.SGD(
        [p for p in plain.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1
    ).step()
    torch.testing.assert_close(module(images), plain(images))
    assert torch.equal(module.frozen.weight, plain.frozen.weight)

    module.mean.zero_()
    module.mask.zero_()
    module.count += 3
    flat.load(flat.state, {"count": np.array(5)})
    assert module.a.same is module.mean
    assert module.mean.all()
    assert module.mask.all()
    assert module.count == 5
    flat.load(flat.state)
    assert module.count == 0


class Replacing(nn.Module):
    """A model whose forward pass replaces its buffers by other tensors."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.register_buffer("running_mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("late", None)

    def forward(self, x):
        self.running_mean = self.running_mean + 1
        self.count = self.count + 1
        self.late = x
        return self.a(x)


def test_replaced_buffers_are_state_too():
    flat = FlatModel(Replacing())
    for _ in range(2):
        flat.load(torch.arange(8.0))
        assert flat.module.late is None
        flat.module(torch.ones(1, 2))
        flat.module(torch.ones(1, 2))
        flat.collect_state()
        assert flat.state[6:].tolist() == [8, 9]
        assert flat.natives() == {"count": 2}
    flat.module.count = torch.zeros(3)
    with pytest.raises(
        TaskError, match=r"count was int64 \(\), and after a batch it is float32 \(3,\)"
    ):
        flat.natives()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([1.5, -torch.inf]).bfloat16(),
        torch.tensor(2 - 3j, dtype=torch.complex64).conj(),
        torch.ones(2, 3, dtype=torch.complex64),
        torch.ones(1).expand(4),
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.tensor([1, 2], dtype=torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_native_tensors_to_arrays_and_back(tensor):
    module = nn.Linear(1, 1)
    module.register_buffer("odd", tensor.clone(memory_format=torch.preserve_format))
    flat = FlatModel(module)
    (array,) = flat.natives().values()
    array = np.array(array)
    flat.load(flat.state, {"odd": np.zeros_like(array)})
    assert not module.odd.to(torch.complex64).any()
    flat.load(flat.state, {"odd": array})
    assert torch.equal(module.odd.to(torch.complex64), tensor.to(torch.complex64))


class Attention(nn.Module):
    """A layer that uses the parameters of the layer inside it, and one parameter twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.mix(x, x, x, need_weights=False)[0])


FUSED = {  # they do not raise the versions of the tensors that they change
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("optimiser", [*OPTIMISERS, *FUSED])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_half_parameters_are_trained_through_their_float32_masters(dtype, optimiser, drop, wrapped):
    torch.manual_seed(0)
    plain = Attention().to(dtype)
    flat = FlatModel(copy.deepcopy(plain))
    named = dict(plain.named_parameters())
    masters = nn.ParameterDict({n.replace(".", "/"): p.detach().float() for n, p in named.items()})
    make = {**OPTIMISERS, **FUSED}[optimiser]
    theirs, ours = make(masters.values()), make([flat.parameters])
    step = flat.step_of(ours)
    tokens = torch.randint(5, (4, 3))
    for _ in range(4):
        plain.zero_grad()
        for name, parameter in named.items():
            parameter.data.copy_(masters[name.replace(".", "/")])
        for model, before in ((plain, plain.zero_grad), (flat.module, flat.zero_grad)):
            before() if model is plain or not drop else flat.drop_grad()
            logits = model(tokens).float().flatten(0, 1)
            nn.functional.cross_entropy(logits, tokens.flatten()).backward()
        if drop:
            flat.parameters.grad = flat.collect_grad()
        for name, parameter in named.items():
            masters[name.replace(".", "/")].grad = parameter.grad.float()
        theirs.step()
        ours.step() if wrapped else step(ours)
    for name, value in flat.state_dict().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, masters[name.replace(".", "/")].detach())
    flat.load(flat.state.clone())
    for name, parameter in flat.module.named_parameters():
        assert torch.equal(parameter.data, flat.state_dict()[name].to(dtype))


def test_sparse_gradients_are_collected():
    flat = FlatModel(torch.nn.Embedding(5, 3, sparse=True))
    flat.drop_grad()
    flat.module(torch.tensor([1, 1, 4])).sum().backward()
    assert flat.collect_grad().reshape(5, 3)[:, 0].tolist() == [0, 2, 0, 0, 1]


def test_the_arrays_of_buffers_do_not_pin_them():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("seen", torch.zeros(0))
    flat = FlatModel(module)
    flat.natives()
    module.seen.resize_(2)  # as quantisation-aware training does
    with pytest.raises(TaskError, match="call the model once"):
        flat.reset()
