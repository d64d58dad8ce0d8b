"""Next-token prediction: a language model predicts each next token of a sequence."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from edgewire.task.errors import TaskError
from edgewire.task.metric import Metric
from edgewire.task.objectives.base import COUNTED, Objective
from edgewire.task.objectives.classification import IGNORED, mean_entropy, one
from edgewire.task.tensors import Tensors


class NextToken(Objective):
    """Cross-entropy of the model's logits (B, T, tokens); targets: integers (B, T), such as int64.

    Targets of -100 are padding, which does not count. `perplexity`: e to the mean loss of a token.
    `accuracy`: the share of tokens that are the most likely one.
    """

    least = 0.0
    metrics = (Metric("perplexity"), Metric("accuracy", True, True))

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean cross-entropy of a token."""
        return mean_entropy(model(inputs).flatten(0, 1), _tokens(targets))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the cross-entropy, the number of tokens, and how many were the most likely."""
        logits, truth = model(inputs).flatten(0, 1), _tokens(targets)
        return {
            "loss": cross_entropy(logits, truth, reduction="sum"),
            COUNTED: torch.count_nonzero(truth != IGNORED),
            "accuracy": (logits.argmax(1) == truth).sum(),
        }

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return means over all tokens, and the perplexity."""
        means = {**super().measured(sums, samples)}
        if sums[COUNTED]:
            loss = sums["loss"] / sums[COUNTED]
            means["perplexity"] = math.exp(loss) if loss < 700 else math.inf
        return means


def _tokens(targets: Tensors) -> Tensor:
    """Return the targets as int64 (B T,). Raises `TaskError` for others than integers."""
    found = one(targets, None)
    if found.is_floating_point():
        raise TaskError(f"this objective takes integers as targets, and these are {found.dtype}")
    return found.flatten().long()
