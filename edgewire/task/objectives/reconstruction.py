"""Reconstruction: a model gives its own input back, as an autoencoder does; anomalies badly."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from edgewire.task.objectives.base import COUNTED, Objective
from edgewire.task.objectives.classification import one
from edgewire.task.objectives.metrics import OF_SCORES, SCORES, keys_of, of_scores
from edgewire.task.objectives.regression import alike
from edgewire.task.tensors import Tensors, only


class Reconstruction(Objective):
    """Squared error between the model's output and its input; targets are not used."""

    least = 0.0
    needs_inputs = True

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean squared error."""
        return mse_loss(*self.pair(model, inputs))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the sum over samples of each sample's mean squared error."""
        return {"loss": self.errors(model, inputs).sum()}

    def errors(self, model: nn.Module, inputs: Tensors) -> Tensor:
        """Return each sample's mean squared error, float64 (B,)."""
        values, truth = self.pair(model, inputs)
        return (values - truth).double().flatten(1).square().mean(1)

    def pair(self, model: nn.Module, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Return the model's output and its input. Raises `TaskError` for several inputs."""
        return alike(model(inputs), only(inputs))


class Anomaly(Reconstruction):
    """Squared error between output and input; targets: int64 (B,), 0 for normal, 1 for anomalies.

    Training uses the inputs alone, so its samples should be normal. `auroc`: the probability that
    an anomaly has a larger error than a normal sample (the area under the ROC curve). It is not
    defined without one of the kinds. The loss of an evaluation is the mean over the normal samples.
    """

    metrics = OF_SCORES[:1]
    others = OF_SCORES[1:]

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the normal samples' squared error, and a key of each sample's error."""
        errors = self.errors(model, inputs)
        odd = one(targets) != 0
        return {
            "loss": errors[~odd].sum(),
            COUNTED: torch.count_nonzero(~odd),
            SCORES: keys_of(errors, odd),
        }

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return the mean error of normal samples, and the area."""
        return {**super().measured(sums, samples), **of_scores(sums)}
