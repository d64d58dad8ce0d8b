"""The synthetic-gradient module: predicts the gradient that a segment's output will get.

Jaderberg et al. 2017 ("Decoupled neural interfaces using synthetic gradients"), section 2.1 and
appendix: one hidden layer, an output that begins at zero, conditioned on the labels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GradientModule(nn.Module):
    """M(h, y): `hidden` units with BatchNorm and ReLU, then as many outputs as h has.

    It begins with zero for every h. `classes`: of the labels, which are an input like h
    (one-hot), or 0: it does not see them. Its BatchNorm always normalises by the batch at hand, and
    keeps no statistics: the module is never used on single samples.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int) -> None:
        super().__init__()
        size = math.prod(shape)
        self.inputs = nn.Linear(size, hidden)
        self.labels = nn.Embedding(classes, hidden) if classes else None
        self.norm = nn.BatchNorm1d(hidden, track_running_stats=False)
        self.outputs = nn.Linear(hidden, size)
        nn.init.zeros_(self.outputs.weight)
        nn.init.zeros_(self.outputs.bias)
        if self.labels is not None:  # a one-hot input of the same linear layer would begin so
            bound = 1 / math.sqrt(size + classes)
            nn.init.uniform_(self.labels.weight, -bound, bound)

    def forward(self, h: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the gradient, of the shape of `h`, (B, ...); `labels` int64 (B,)."""
        hidden = self.inputs(h.flatten(1))
        if self.labels is not None:
            hidden = hidden + self.labels(labels)
        gradient: Tensor = self.outputs(torch.relu(self.norm(hidden)))
        return gradient.view(h.shape)
