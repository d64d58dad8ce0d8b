"""Regression: each sample has one value or several."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from edgewire.task.errors import TaskError
from edgewire.task.metric import Metric
from edgewire.task.objectives.base import Objective
from edgewire.task.objectives.classification import one
from edgewire.task.tensors import Tensors, mapped

ROUNDING = 1e-12  # a variance is 0 below this share of the mean square


class Regression(Objective):
    """Squared error of the model's values; targets: floats of the same shape, (B,) or (B, k).

    The model learns (target - `mean`) / `scale`, of which `loss` is the mean squared error. The
    metrics are in the targets' unit. `mae`: the mean absolute error. `rmse`: the root of the mean
    squared error. `r2`: the share of the targets' variance that the model explains, as a mean over
    the k values; it is not defined for equal targets.
    Raises `TaskError` for a mean that is not finite, and for a scale that is not above 0.
    """

    least = 0.0
    finite_targets = True
    metrics = (Metric("mae"), Metric("rmse"))
    others = (Metric("r2", True),)
    _mean, _scale = 0.0, 1.0

    def __init__(
        self, metrics: Sequence[str] | None = None, mean: float = 0.0, scale: float = 1.0
    ) -> None:
        super().__init__(metrics)
        if not (math.isfinite(mean) and 0 < scale < math.inf):
            raise TaskError(f"mean={mean:g}, scale={scale:g}: a finite mean and a scale above 0")
        self._mean, self._scale = mean, scale

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean squared error."""
        return mse_loss(*self._pair(model, inputs, targets))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return sums over the samples: of errors, and for r2 of each value's squares."""
        values, truth = self._pair(model, inputs, targets)
        errors = (values - truth).double().view(len(truth), -1)
        sums = {"loss": errors.square().mean(1).sum()}
        if "mae" in self.names:
            sums["mae"] = errors.abs().mean(1).sum() * self._scale
        if "r2" in self.names:
            places = truth.double().view(len(truth), -1)
            sums["squares"] = torch.cat([errors.square(), places, places.square()], 1).sum(0)
        return sums

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return the means over all samples, the root of the mean squared error, and r2."""
        found = {**super().measured(sums, samples)}
        found["rmse"] = (sums["loss"] / samples) ** 0.5 * self._scale
        if "squares" in sums:
            errors, places, squares = np.array(sums["squares"]).reshape(3, -1) / samples
            spread = squares - places**2
            known = spread > squares * ROUNDING
            r2 = 1 - errors[known] / spread[known]
            found["r2"] = float(r2.mean()) if known.any() else None
        return found

    def facts(
        self, sums: Mapping[str, Any], targets: Tensors, classes: Sequence[str]
    ) -> dict[str, Any]:
        """Return the metrics of a model that always gives the targets' mean, or their median."""
        if not isinstance(targets, Tensor) or not len(targets):
            return {}
        truth = targets.double()
        mean, median = (
            self.constant(((each - self._mean) / self._scale).expand_as(truth), truth)
            for each in (truth.mean(0), truth.median(0).values)
        )
        return {"constant": mean | {name: median[name] for name in ("mae",) if name in median}}

    def answer(self, outputs: Tensors) -> Tensors:
        """Return values in the targets' unit."""
        return mapped(lambda values: values * self._scale + self._mean, outputs)

    def _pair(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> tuple[Tensor, Tensor]:
        """Return the model's values and what it learns, as floats of one shape."""
        truth = one(targets, None)
        if (self._mean, self._scale) != (0.0, 1.0):
            truth = (truth.double() - self._mean) / self._scale
        return alike(model(inputs), truth)


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
