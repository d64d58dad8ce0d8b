"""Classification: each sample has one class."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from edgewire.task.errors import TaskError
from edgewire.task.objectives.base import Metric, Objective
from edgewire.task.tensors import Tensors

IGNORED = -100  # a target that does not count: torch's default


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
        if (truth == IGNORED).any():
            raise TaskError(
                f"targets of {IGNORED}, which do not count, are for objective=next_token and "
                "segmentation: leave such samples out"
            )
        likely = logits.topk(min(5, logits.shape[1])).indices == truth[:, None]
        return {
            "loss": cross_entropy(logits, truth, reduction="sum"),
            "accuracy": (logits.argmax(1) == truth).sum(),
            "top5": likely.sum(),
        }


def mean_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the mean cross-entropy of the targets that count; 0 if none does."""
    total = cross_entropy(logits, truth, reduction="sum", ignore_index=IGNORED)
    return total / torch.count_nonzero(truth != IGNORED).clamp(min=1)


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
