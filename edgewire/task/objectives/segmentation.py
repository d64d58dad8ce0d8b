"""Segmentation: each pixel of an image has one class."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from edgewire.task.metric import Metric
from edgewire.task.objectives.base import COUNTED, Objective
from edgewire.task.objectives.classification import IGNORED, mean_entropy, one
from edgewire.task.tensors import Tensors


class Segmentation(Objective):
    """Cross-entropy of the model's logits (B, classes, H, W); targets: int64 (B, H, W).

    Targets of -100 do not count. `iou`: the mean over classes of intersection / union of the
    predicted and the true pixels, without classes that neither has. `accuracy`: the share of pixels
    with the right class.
    """

    least = 0.0
    metrics = (Metric("iou", True, True), Metric("accuracy", True, True))

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean cross-entropy of a pixel."""
        return mean_entropy(model(inputs), one(targets))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the cross-entropy, the number of pixels, and each class's pixels."""
        logits, truth = model(inputs), one(targets)
        counts = truth != IGNORED
        classes, found = logits.shape[1], logits.argmax(1)
        hit = torch.bincount(truth[counts & (found == truth)], minlength=classes)
        union = torch.bincount(truth[counts], minlength=classes) - hit
        union += torch.bincount(found[counts], minlength=classes)
        return {
            "loss": cross_entropy(logits, truth, reduction="sum"),
            "accuracy": hit.sum(),
            COUNTED: counts.sum(),
            "hit": hit,
            "union": union,
        }

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return means over all pixels, and the mean intersection over union of the classes."""
        pairs = zip(sums["hit"], sums["union"], strict=True)
        shares = [h / u if 0 <= h <= u else float("nan") for h, u in pairs if h or u]
        iou = sum(shares) / len(shares) if shares else None
        return {**super().measured(sums, samples), "iou": iou}
