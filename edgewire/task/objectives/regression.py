"""Regression: each sample has one value or several."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from edgewire.task.errors import TaskError
from edgewire.task.objectives.base import Metric, Objective
from edgewire.task.objectives.classification import one
from edgewire.task.tensors import Tensors


class Regression(Objective):
    """Squared error of the model's values; targets: floats of the same shape, (B,) or (B, k).

    `mae`: the mean absolute error, in the targets' unit. `rmse`: the root of the mean squared
    error.
    """

    least = 0.0
    finite_targets = True
    metrics = (Metric("mae"), Metric("rmse"))

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean squared error."""
        return mse_loss(*alike(model(inputs), one(targets, None)))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the sums over samples of the mean squared and absolute errors of a sample."""
        values, truth = alike(model(inputs), one(targets, None))
        errors = (values - truth).double().view(len(truth), -1)
        return {"loss": errors.square().mean(1).sum(), "mae": errors.abs().mean(1).sum()}

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return the means over all samples, and the root of the mean squared error."""
        return {**super().measured(sums, samples), "rmse": (sums["loss"] / samples) ** 0.5}


def alike(values: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as floats of one shape; raises `TaskError` if their shapes differ.

    A model may give (B, 1) for targets (B,).
    """
    if values.dim() == truth.dim() + 1 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    if values.shape != truth.shape:
        raise TaskError(
            f"the model gives {tuple(values.shape)} for targets of {tuple(truth.shape)}: give it "
            f"as many outputs as there are targets"
        )
    return values, truth.to(values.dtype)
