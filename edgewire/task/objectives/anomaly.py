"""Anomaly detection: a model that reconstructs normal samples, and anomalies badly."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgewire.task.objectives.base import COUNTED, Metric
from edgewire.task.objectives.classification import one
from edgewire.task.objectives.reconstruction import Reconstruction
from edgewire.task.tensors import Tensors

BINS, PER_OCTAVE, LEAST = 160, 8, -10.0  # errors from 2^-10 to 2^10


class Anomaly(Reconstruction):
    """Squared error between output and input; targets: int64 (B,), 0 for normal, 1 for anomalies.

    Training uses the inputs alone, so its samples should be normal. `auroc`: the probability that
    an anomaly has a larger error than a normal sample (the area under the ROC curve). It comes from
    histograms of the errors with eight bins for each factor of 2; two errors in a bin count as
    equal. It is not defined without one of the kinds. The loss of an evaluation is the mean over
    the normal samples.
    """

    metrics = (Metric("auroc", True, True),)

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the normal samples' squared error, and histograms of both kinds' errors."""
        errors = self.errors(model, inputs)
        odd = one(targets) != 0
        places = (
            (errors.log2().sub(LEAST).mul(PER_OCTAVE).nan_to_num(BINS)).clamp(0, BINS - 1).long()
        )
        return {
            "loss": errors[~odd].sum(),
            COUNTED: torch.count_nonzero(~odd),
            "normal": torch.bincount(places[~odd], minlength=BINS),
            "anomalies": torch.bincount(places[odd], minlength=BINS),
        }

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return the mean error of normal samples, and the area."""
        below, area = 0.0, 0.0
        for here, odd in zip(sums["normal"], sums["anomalies"], strict=True):
            area += odd * (below + here / 2)
            below += here if min(here, odd) >= 0 else float("nan")
        pairs = below * sum(sums["anomalies"])
        return {**super().measured(sums, samples), "auroc": area / pairs if pairs else None}
