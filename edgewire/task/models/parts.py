"""The registry of models, and helpers that adapt published networks to small images."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import nn

from edgewire.task.errors import TaskError

Make = Callable[[int, int, int], nn.Module]
MODELS: dict[str, Make] = {}  # by name

# For images with a smaller side (pixels), networks get the first layer that is usual for CIFAR.
SMALL = 64


def register(name: str) -> Callable[[Make], Make]:
    """Return a decorator that adds a model to `MODELS`.

    Raises `RuntimeError` if another model has this name. A function with the same module and name
    takes the place of the earlier one: its module is imported again.
    """

    def add(make: Make) -> Make:
        other = MODELS.get(name, make)
        if _place_of(make) != _place_of(other):
            raise RuntimeError(f"two models are named {name}")
        MODELS[name] = make
        return make

    return add


def _place_of(make: object) -> tuple[str, str]:
    """Return the module and the name of a function or class."""
    return str(getattr(make, "__module__", "")), str(getattr(make, "__qualname__", make))


def need(name: str, size: int, smallest: int) -> None:
    """Raise `TaskError` if images of `size` x `size` pixels are too small for a model.

    `name`: the model's name; `smallest`: the smallest `size` that the model takes.
    """
    if size < smallest:
        raise TaskError(
            f"{name} needs images of at least {smallest} x {smallest} pixels, these have "
            f"{size} x {size}: give dataset.size={smallest} or more, or another model"
        )


def dense(*sizes: int, norm: bool = False) -> list[nn.Module]:
    """Return linear layers with these sizes, and ReLU (if `norm`, BatchNorm too) between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.BatchNorm1d(inputs)] if norm and layers else []
        layers += [nn.ReLU()] if layers else []
        layers += [nn.Linear(inputs, outputs)]
    return layers


def stem(conv: nn.Conv2d, channels: int, size: int) -> nn.Conv2d:
    """Return a network's first layer `conv` for `channels`; 3 x 3, stride 1 for small images."""
    if size >= SMALL and channels == conv.in_channels:
        return conv
    kept = {name: getattr(conv, name) for name in ("kernel_size", "stride", "padding")}
    shape: Any = {"kernel_size": 3, "padding": 1} if size < SMALL else kept
    new = nn.Conv2d(channels, conv.out_channels, bias=conv.bias is not None, **shape)
    if new.bias is None:  # BatchNorm follows: initialise as torchvision does
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new
