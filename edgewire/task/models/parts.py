"""The registry of models, and helpers that adapt published networks to small images."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import nn

from edgewire.task.errors import TaskError
from edgewire.task.registry import Registry

MODELS: Registry[Callable[[int, int, int], nn.Module]] = Registry("model", "edgewire.task.models")

# For images with a smaller side (pixels), networks get the first layer that is usual for CIFAR.
SMALL = 64


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
