"""Anomaly detection: a model that reconstructs normal samples, and anomalies badly."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgewire.task.objectives.base import COUNTED
from edgewire.task.objectives.classification import one
from edgewire.task.objectives.metrics import OF_SCORES, SCORES, keys_of, of_scores
from edgewire.task.objectives.reconstruction import Reconstruction
from edgewire.task.tensors import Tensors


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
