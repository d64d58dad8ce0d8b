"""A table with a value to predict: the data, and a model for it."""

import torch
from torch import nn

from edgewire.task.datasets import Data, Split


def table(samples: int = 2000, features: int = 8) -> Data:
    """Return the samples: `features` columns, and a value that depends on them."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(samples, features, generator=random)
    y = x.sum(1) + 0.1 * torch.randn(samples, generator=random)
    cut = samples * 4 // 5
    return Data(train=Split(x[:cut], y[:cut]), test=Split(x[cut:], y[cut:]))


def net(features: int = 8, hidden: int = 32) -> nn.Module:
    """Return a network with one hidden layer and one output."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
