"""Models with more state than float32 parameters; their names are `zoo_NAME`."""

import torch
from torch import nn

ZOO = {}


def member(cls):
    """Add a module class to `ZOO`; its constructor takes `(features, classes)`."""
    ZOO[f"zoo_{cls.__name__.lower()}"] = cls
    return cls


class Base(nn.Module):
    """A model of two layers; a subclass adds its special state in `self.middle(h)`."""

    def __init__(self, features, classes, width=12):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.last = nn.Linear(width, classes)

    def middle(self, h):
        return h

    def forward(self, x):
        return self.last(torch.relu(self.middle(self.first(x.flatten(1)))))


@member
class Cumulative(Base):
    """A model whose BatchNorm takes means over all batches, so its counter affects the result."""

    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.norm = nn.BatchNorm1d(12, momentum=None)

    def middle(self, h):
        return self.norm(h)


@member
class Counter(Base):
    """A model that counts batches in place; the count scales the output."""

    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def middle(self, h):
        if self.training:
            self.count += 1
        return h * (1 + 0.01 * self.count)


@member
class Replaced(Counter):
    """A model that puts new tensors in place of its buffers: a counter and two running means."""

    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("running_mean", torch.zeros(12))

    def middle(self, h):
        if self.training:
            self.count = self.count + 1
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            self.running_mean = 0.9 * self.running_mean + 0.1 * h.detach().mean(0)
        return h * (1 + 0.01 * self.count) - self.mean - self.running_mean


@member
class Masked(Base):
    """A model with constant buffers: of -infinity, of bools, expanded, transposed and empty.

    The forward pass changes one more buffer, which is not in the state dict.
    """

    def __init__(self, features, classes):
        super().__init__(features, classes)
        mask = torch.full((classes, 12), -torch.inf).triu(10)
        self.register_buffer("mask", torch.nan_to_num(mask, nan=0.0, neginf=-torch.inf))
        self.register_buffer("chosen", torch.arange(12) % 5 > 0)
        self.register_buffer("wide", torch.ones(1).expand(12))
        self.register_buffer("turned", torch.linspace(0.9, 1.1, 24).reshape(12, 2).t())
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def middle(self, h):
        weights = torch.softmax(h.unsqueeze(1) + self.mask, -1).mean(1)
        self.cache += 1
        return h * self.chosen * self.wide * self.turned[0] + weights * self.cache.mean()


@member
class Tied(Base):
    """A model with a weight and a counter that two modules share, a frozen weight and a scalar."""

    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.one, self.two = nn.Linear(12, 12), nn.Linear(12, 12)
        self.two.weight = self.one.weight
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int32))
        self.one.register_buffer("same", self.count)

    def middle(self, h):
        if self.training:
            self.count += 1
        h = self.two(torch.relu(self.one(h)))
        return self.scale * h + self.frozen(h) / (1 + self.count)


@member
class Types(Base):
    """A model with buffers of many types, some of which change, and a frozen float16 weight."""

    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.register_buffer("halves", torch.full((12,), 0.5, dtype=torch.bfloat16))
        self.register_buffer("doubles", torch.zeros(12, dtype=torch.float64))
        self.register_buffer("waves", torch.ones(12, dtype=torch.complex64))
        self.register_buffer("bits", torch.arange(12, dtype=torch.uint8))
        self.register_buffer("best", torch.full((), -torch.inf))
        self.frozen = nn.Linear(12, 12).half().requires_grad_(False)

    def middle(self, h):
        if self.training:
            seen = h.detach()
            self.doubles += seen.mean(0).double()
            self.halves.mul_(0.99)
            self.bits += 1
            self.best.copy_(torch.maximum(self.best, seen.max()))
            self.waves *= torch.exp(1j * torch.tensor(0.1))
        low = 0.01 * self.doubles.float() + self.halves.float() + self.waves.real + self.bits / 255
        return h * low + torch.tanh(self.best) + nn.functional.linear(h, self.frozen.weight.float())


@member
class All(Base):
    """A model with all other models of this file in sequence, except `row`."""

    def __init__(self, features, classes):
        super().__init__(features, classes)
        kinds = (Cumulative, Counter, Replaced, Masked, Tied, Types)
        self.parts = nn.ModuleList(kind(12, 12) for kind in kinds)

    def middle(self, h):
        for part in self.parts:
            h = h + 0.1 * part(h)
        return h


class Step(nn.Module):
    """A module that replaces its counter by a new tensor for each batch, and adds a constant.

    The constant is added to the input; its type is bfloat16.
    """

    def __init__(self, width):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("shift", torch.full((width,), 0.25, dtype=torch.bfloat16))
        self.register_buffer("floor", torch.full((width,), -torch.inf))

    def forward(self, x):
        if self.training:
            self.count = self.count + 1
        return torch.maximum(x * (1 + 0.01 * self.count) + self.shift.float(), self.floor)


def row(channels, size, classes):
    """Return a model that can be cut, with cumulative statistics, counters and a frozen layer."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, 12),
        nn.BatchNorm1d(12, momentum=None),
        Step(12),
        nn.Linear(12, 12).requires_grad_(False),
        nn.Linear(12, 12),
        Step(12),
        nn.ReLU(),
        nn.Linear(12, classes),
    )


def makers():
    """Return the functions that build the models, in the form of `edgewire.task.models`."""

    def make(cls):
        return lambda channels, size, classes: cls(channels * size * size, classes)

    return {"zoo_row": row, **{name: make(cls) for name, cls in ZOO.items()}}
