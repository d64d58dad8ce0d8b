"""Next-token prediction: a language model predicts each next token of a sequence."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from task.errors import TaskError
from task.objectives.base import Metric, Objective
from task.objectives.classification import one
from task.tensors import Tensors


class NextToken(Objective):
    """Cross-entropy of the model's logits (B, T, tokens); targets: integers (B, T), such as int64.

    Targets of -100 are padding, which does not count. `perplexity`: e to the mean loss of a token.
    `accuracy`: the share of tokens that are the most likely one.
    """

    least = 0.0
    metrics = (Metric("perplexity"), Metric("accuracy", True, True))

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean cross-entropy of a token."""
        return cross_entropy(model(inputs).flatten(0, 1), _tokens(targets))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the cross-entropy, the number of tokens, and how many were the most likely."""
        logits, truth = model(inputs).flatten(0, 1), _tokens(targets)
        return {
            "loss": cross_entropy(logits, truth, reduction="sum"),
            "tokens": torch.count_nonzero(truth != -100),
            "accuracy": (logits.argmax(1) == truth).sum(),
        }

    def measured(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return means over all tokens, and the perplexity."""
        loss = sums["loss"] / sums["tokens"]
        perplexity = math.exp(loss) if loss < 700 else math.inf
        accuracy = sums["accuracy"] / sums["tokens"]
        return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy}


def _tokens(targets: Tensors) -> Tensor:
    """Return the targets as int64 (B T,). Raises `TaskError` for others than integers."""
    found = one(targets, None)
    if found.is_floating_point():
        raise TaskError(f"this objective takes integers as targets, and these are {found.dtype}")
    return found.flatten().long()
