"""The synthetic-gradient module, which predicts the gradient of a segment's output.

Jaderberg et al. 2017 ("Decoupled neural interfaces using synthetic gradients"), section 2.1 and
appendix. The module has one hidden layer and an output layer that is initialised to zero. It is
conditioned on the labels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GradientModule(nn.Module):
    """The module M(h, y), which predicts the gradient of a segment's output h; y: the labels.

    It has `hidden` units with BatchNorm and ReLU, then as many outputs as h has entries. A new
    module predicts zero for every h. `classes`: the number of classes; the one-hot label is
    an input in addition to h. 0: no label. Its BatchNorm always normalises by the current
    mini-batch and keeps no statistics, because the module never sees single samples.
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
        # As `nn.Linear` initialises the weights of `size` + `classes` inputs.
        if self.labels is not None:
            bound = 1 / math.sqrt(size + classes)
            nn.init.uniform_(self.labels.weight, -bound, bound)

    def forward(self, h: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the predicted gradient, float32 of `h`'s shape (B, ...); `labels` int64 (B,)."""
        hidden = self.inputs(h.flatten(1))
        if self.labels is not None:
            hidden = hidden + self.labels(labels)
        gradient: Tensor = self.outputs(torch.relu(self.norm(hidden)))
        return gradient.view(h.shape)
