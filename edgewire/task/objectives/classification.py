"""Classification: each sample has one class."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from edgewire.task.errors import TaskError
from edgewire.task.objectives.base import Metric, Objective
from edgewire.task.tensors import Tensors

IGNORED = -100  # a target that does not count: torch's default


class Weighted(Objective):
    """An objective of classes, which may have weights in the training's loss.

    `class_weights`: the weight of each class. The loss of training is then a weighted mean, as with
    torch's `weight=`; the loss of an evaluation is without weights. `balanced` stands for weights
    that the command computes from the training samples before the run (`command.from_data`). Raises
    `TaskError` for weights that are not above 0.
    """

    _weights: Tensor | None = None

    def __init__(
        self,
        metrics: Sequence[str] | None = None,
        class_weights: str | Sequence[float] | None = None,
    ) -> None:
        super().__init__(metrics)
        if class_weights is None:
            return
        given = [] if isinstance(class_weights, str) else class_weights
        if not given or not all(type(w) in (int, float) and 0 < w < math.inf for w in given):
            raise TaskError(
                "class_weights must be numbers above 0, one for each class, or balanced, which "
                f"`python run.py` computes before a new run; not {class_weights}"
            )
        self._weights = torch.tensor(given, dtype=torch.float64)

    def entropy(self, logits: Tensor, truth: Tensor) -> Tensor:
        """Return the mean cross-entropy of the targets that count, a scalar; 0 if none does."""
        if self._weights is None:
            return mean_entropy(logits, truth)
        weights, counts = self._weights.to(logits), truth != IGNORED
        total = cross_entropy(logits, truth, weights, reduction="sum", ignore_index=IGNORED)
        return total / weights[truth[counts]].sum().clamp(min=float(weights.min()))


class Classification(Weighted):
    """Cross-entropy of the model's logits (B, classes); targets: int64 (B,).

    `accuracy`, `top5`: the shares of samples whose class is the most likely one, and among the five
    most likely ones.
    """

    least = 0.0
    metrics = (Metric("accuracy", True, True), Metric("top5", True, True))

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean cross-entropy."""
        if self._weights is None:
            return cross_entropy(model(inputs), one(targets))
        return self.entropy(model(inputs), one(targets))

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
