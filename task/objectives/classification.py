"""Classification: each sample has one class."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from task.errors import TaskError
from task.objectives.base import Metric, Objective
from task.tensors import Tensors


class Classification(Objective):
    """Cross-entropy of the model's logits (B, classes); targets: int64 (B,).

    `accuracy`, `top5`: the shares of samples whose class is the most likely one, and among the five
    most likely ones.
    """

    least = 0.0
    metrics = (Metric("accuracy", True, True), Metric("top5", True, True))

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(model(inputs), one(targets))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the cross-entropy, and the numbers of samples that `metrics` count."""
        logits, truth = model(inputs), one(targets)
        likely = logits.topk(min(5, logits.shape[1])).indices == truth[:, None]
        return {
            "loss": cross_entropy(logits, truth, reduction="sum"),
            "accuracy": (logits.argmax(1) == truth).sum(),
            "top5": likely.sum(),
        }


def one(targets: Tensors, kind: torch.dtype | None = torch.int64) -> Tensor:
    """Return the only tensor of targets. Raises `TaskError` for others, and for another dtype."""
    if not isinstance(targets, Tensor):
        raise TaskError(
            f"the objective takes one tensor of targets, and the data have {len(targets)}: give an "
            f"objective= that fits the data"
        )
    if kind is not None and targets.dtype != kind:
        raise TaskError(f"this objective takes targets of {kind}, and these are {targets.dtype}")
    return targets
