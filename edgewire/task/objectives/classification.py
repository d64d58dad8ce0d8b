"""Classification: each sample has one class."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from edgewire.task.errors import TaskError
from edgewire.task.metric import Metric
from edgewire.task.objectives.base import Objective
from edgewire.task.objectives.metrics import (
    CONFUSION,
    MOST_CLASSES,
    OF_CLASSES,
    OF_SCORES,
    PER_CLASS,
    SCORES,
    class_keys,
    of_classes,
    of_scores,
    per_class,
)
from edgewire.task.tensors import Tensors, mapped, only

IGNORED = -100  # a target that does not count: torch's default
COUNTING, SCORING = ({each.name for each in group} for group in (OF_CLASSES, OF_SCORES))


class Classification(Objective):
    """Cross-entropy of the model's logits (B, classes); targets: int64 (B,).

    `accuracy`, `top5`: the shares of samples whose class is the most likely one, and among the five
    most likely ones. `edgewire.task.objectives.metrics` defines the other metrics.

    `class_weights`: the weight of each class in the loss of training, a weighted mean as with
    torch's `weight=`. The loss of an evaluation is without weights. The command replaces `balanced`
    by the weights of the training samples. Raises `TaskError` for weights that are not above 0.
    """

    least = 0.0
    metrics = (Metric("accuracy", True, True), Metric("top5", True, True))
    others = (*OF_CLASSES, *OF_SCORES)
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

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean cross-entropy."""
        logits = model(inputs)
        weights = None if self._weights is None else self._weights.to(logits)
        try:
            return cross_entropy(logits, truth := one(targets), weights)
        except IndexError as error:  # on the CPU, where a run is checked
            last = int(truth.min().clamp(max=0)) or int(truth.max())
            top = logits.shape[1] - 1
            said = f"the model's outputs are for the targets 0 to {top}, and there is a {last}"
            raise TaskError(said) from error

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the cross-entropy, and what the metrics count of the classes and their scores."""
        logits, truth = model(inputs), one(targets)
        if (truth == IGNORED).any():
            raise TaskError(
                f"targets of {IGNORED}, which do not count, are for objective=next_token and "
                "segmentation: leave such samples out"
            )
        found, classes = logits.argmax(1), logits.shape[1]
        sums = {"loss": cross_entropy(logits, truth, reduction="sum")}
        if "accuracy" in self.names:
            sums["accuracy"] = (found == truth).sum()
        if "top5" in self.names:
            sums["top5"] = (logits.topk(min(5, classes)).indices == truth[:, None]).sum()
        if classes <= MOST_CLASSES:
            sums[CONFUSION] = torch.bincount(truth * classes + found, minlength=classes * classes)
        elif not COUNTING.isdisjoint(self.names):
            each = (truth[found == truth], truth, found)
            sums[PER_CLASS] = torch.cat([torch.bincount(ids, minlength=classes) for ids in each])
        if not SCORING.isdisjoint(self.names):
            sums[SCORES] = class_keys(logits, truth)
        return sums

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return the loss and the metrics; NaN for counts that no samples have."""
        found = {**super().measured(sums, samples)}
        if CONFUSION in sums or PER_CLASS in sums:
            try:
                found |= of_classes(per_class(sums, samples))
            except ValueError:  # a server refuses NaN
                return dict.fromkeys(self.names, math.nan)
        if SCORES in sums:
            found |= of_scores(sums)
        return found

    def facts(
        self, sums: Mapping[str, Any], targets: Tensors, classes: Sequence[str]
    ) -> dict[str, Any]:
        """Return the confusion matrix, and the metrics of always the most frequent class."""
        found: dict[str, Any] = {}
        if CONFUSION in sums:
            flat = np.array(sums[CONFUSION]).round().astype(int)
            table = flat.reshape(round(len(flat) ** 0.5), -1)
            classes = [*classes, *map(str, range(len(classes), len(table)))]
            targets = torch.arange(len(table)).repeat_interleave(torch.tensor(table.sum(1)))
            found = {"class_names": classes, "confusion": table.tolist()} if len(table) > 1 else {}
        if isinstance(targets, Tensor) and classes:
            most = int(targets.bincount().argmax())
            logits = one_hot(targets.new_tensor(most), len(classes)).float()
            constant = self.constant(logits.expand(len(targets), -1), targets)
            constant.pop("top5", None)
            found["constant"] = {"class": classes[most], **constant}
        return found

    def answer(self, outputs: Tensors) -> Tensors:
        """Return the probability of each class, (B, classes)."""
        return mapped(lambda logits: logits.softmax(1), outputs)


def mean_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the mean cross-entropy of the targets that count; 0 if none does."""
    total = cross_entropy(logits, truth, reduction="sum", ignore_index=IGNORED)
    return total / torch.count_nonzero(truth != IGNORED).clamp(min=1)


def one(targets: Tensors, kind: torch.dtype | None = torch.int64) -> Tensor:
    """Return the only tensor of targets. Raises `TaskError` for others, and for another dtype."""
    found = only(targets)
    if kind is not None and found.dtype != kind:
        cure = ": 'dataset.kinds={COLUMN: category}' makes classes of a table's numbers"
        cure *= kind == torch.int64 and found.is_floating_point()
        raise TaskError(f"this objective takes targets of {kind}, these are {found.dtype}{cure}")
    return found
