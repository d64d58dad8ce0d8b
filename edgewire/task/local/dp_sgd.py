"""DP-SGD: noisy gradients of random mini-batches, which hide each single sample of a node.

Abadi et al. 2016, "Deep learning with differential privacy", Algorithm 1. In each step, each sample
is in the mini-batch with the probability q, independently of the others. The gradient of each
sample is clipped to the L2 norm C, and the normal noise of the deviation z C is added to their sum.
What is computed from the noisy gradients needs no more noise.

The guarantee is for data sets that differ in one sample, which is replaced by one without a
gradient. So the number n of the node's samples is not hidden, and the sum can be divided by q n.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError, errors_as
from edgewire.task.flat_model import FlatModel
from edgewire.task.local.secret_draws import normal, uniform
from edgewire.task.objectives import Objective
from edgewire.task.rng import CPU, IsolatedRng
from edgewire.task.tensors import Tensors, count, leaves, mapped, rows, taken

Batch = tuple[Tensors, Tensors]  # as in `edgewire.task.steps`, which imports more
Precision = Callable[[FlatModel], AbstractContextManager[Any]]
CHUNK_BYTES, CHUNK = 64 << 20, 256  # the most bytes and samples of gradients in memory at once
ROUNDED = 1e-3  # of the clipping norm: sums in float32 are changed by less
CURE = ": no if or item() on values, no change of buffers in place; GroupNorm in place of BatchNorm"


class _Loss(nn.Module):
    """The loss of an objective as a module, so that the model's parameters can be arguments."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._of = objective.loss

    def forward(self, inputs: Tensors, targets: Tensors) -> Tensor:
        return self._of(self.model, inputs, targets)


class SampleGradients:
    """Computes sums of clipped gradients of single samples for a model.

    The loss of a sample is the objective's loss of a mini-batch of this sample alone. Random layers
    such as dropout draw anew for each sample. `precision`: returns the context in which the layers
    compute. Raises `TaskError` for a model with BatchNorm, which mixes samples.
    """

    def __init__(self, flat: FlatModel, objective: Objective, precision: Precision) -> None:
        self._flat, self._loss, size = flat, _Loss(flat.module, objective), flat.num_parameters
        norms = [each for each in flat.module.modules() if isinstance(each, _BatchNorm)]
        if any(each.training and each.track_running_stats for each in norms):
            cure = "take GroupNorm, as model=resnet18_gn does"
            raise TaskError(f"privacy=sample: BatchNorm mixes samples: {cure}")
        self._chunk = max(min(CHUNK, CHUNK_BYTES // (4 * max(size, 1))), 1)
        warnings.filterwarnings("ignore", "There is a performance drop")  # torch's, for LSTMs

        def loss(tensors: dict[str, Tensor], rest: dict[str, Tensor], *sample: Tensors) -> Tensor:
            alone = tuple(mapped(lambda tensor: tensor.unsqueeze(0), each) for each in sample)
            with precision(flat):
                found: Tensor = functional_call(self._loss, {**rest, **tensors}, alone)
            return found

        self._gradients = vmap(grad(loss), in_dims=(None, None, 0, 0), randomness="different")

    def total(self, batch: Batch, clip: float) -> Tensor:
        """Return the sum of the samples' gradients, each scaled to at most the norm `clip`.

        It is float64 (n,), on the CPU. A gradient with NaN or infinity, or whose norm is beyond
        float32, counts as 0. Raises `TaskError` for a model that torch cannot vectorise.
        """
        self._flat.round_halves()
        trained = {f"model.{each.name}": each.parameter.detach() for each in self._flat.trained}
        buffers = dict(self._loss.named_buffers())  # given back if the model replaces one
        total = torch.zeros(self._flat.num_parameters, dtype=torch.float64)
        for start in range(0, count(batch[0]), self._chunk):
            few = [rows(each, start, start + self._chunk) for each in batch]
            with errors_as("privacy=sample: torch cannot vectorise the model", CURE):
                found = self._gradients(trained, buffers, *few)
            flat = [each.flatten(1).float() for each in found.values()]
            total += _clipped(flat, clip * (1 - ROUNDED)).cpu().double()
        return total


@dataclass(frozen=True)
class DpSgd:
    """The random mini-batches and noisy gradients of a node's training for one message.

    `samples`: all of the node. `rate`, `clip`, `noise`: q in (0, 1], C, and the noise multiplier z.
    """

    gradients: SampleGradients
    samples: Batch
    rate: float
    clip: float
    noise: float

    def batches(self) -> Iterator[Batch]:
        """Yield mini-batches for ever; they may be empty (Algorithm 1, line 4)."""
        inputs, targets = self.samples
        while True:
            drawn = uniform(count(inputs)) < self.rate
            index = drawn.nonzero().flatten().to(leaves(inputs)[0].device)
            yield taken(inputs, index), taken(targets, index)

    def gradient(self, batch: Batch) -> Tensor:
        """Return the noisy gradient, float32 (n,), of a mini-batch (Algorithm 1, lines 5 to 11).

        The noise is drawn and added in float64. The result is rounded to float32, which hides the
        gaps between the float64 numbers that can be drawn (Mironov 2012).
        """
        total = self.gradients.total(batch, self.clip)
        total.add_(normal(len(total)), alpha=self.noise * self.clip)
        return total.div_(self.rate * count(self.samples[0])).float()


def expect_private(
    model: nn.Module, objective: Objective, precision: Precision, data: Data
) -> None:
    """Raise `TaskError` if the gradients of single samples cannot be computed."""
    few = data.prepared(rows(data.train.inputs, 0, 2)), rows(data.train.targets, 0, 2)
    with IsolatedRng(CPU, 0):
        SampleGradients(FlatModel(model), objective, precision).total(few, 1.0)


def _clipped(gradients: list[Tensor], clip: float) -> Tensor:
    """Return the sum of the samples' clipped gradients, float32 (n,)."""
    norms = torch.stack([torch.linalg.vector_norm(each, dim=1) for each in gradients]).norm(dim=0)
    if not (finite := norms.isfinite()).all():
        gradients, norms = [each[finite] for each in gradients], norms[finite]
    shares = (clip / norms).clamp(max=1)  # 1 for a norm of 0
    return torch.cat([shares @ each for each in gradients])
