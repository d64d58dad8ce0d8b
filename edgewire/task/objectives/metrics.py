"""Metrics of classes and of their scores, from sums that add over batches and nodes.

The values are scikit-learn's. Two classes have the precision, recall, F1 and average precision of
the class with fewer samples, of two equal ones of the second. Other numbers of classes have the
mean over the classes, each against all others.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task.metric import Metric
from edgewire.task.objectives.base import KEYS

Counts = NDArray[np.float64]
CONFUSION = "confusion"  # a sum, int64 (K * K,): the samples by their true and predicted class
PER_CLASS = "per_class"  # a sum, int64 (3 * K,): right, true and predicted samples of each class
SCORES = f"scores{KEYS}"  # a sum of keys (`keys_of`)
MOST_CLASSES = 100  # with more classes a confusion matrix is too large to be sent
ROUNDING = 1e-9  # relative error of sums that were means
LEAST = 1e-300  # takes the place of a count of 0, of which all parts are 0, too
MAJORITY = 0.6  # the share of a class above which accuracy says little
OF_CLASSES = tuple(
    Metric(name, True, name != "mcc")
    for name in ("balanced_accuracy", "f1", "precision", "recall", "mcc")
)
OF_SCORES = (Metric("auroc", True, True), Metric("average_precision", True, True))


def default_metrics(classes: int, *, scores: bool, majority: float = 0.0) -> list[str]:
    """Return the names of the metrics of a new run, the main one first.

    `scores`: whether a metric may need the score of each sample, which no node sends unasked.
    `majority`: the most frequent class's share of a table's samples; above 60 % the balanced
    accuracy is the main metric.
    """
    first = ["balanced_accuracy", "accuracy"] if majority > MAJORITY else ["accuracy"]
    more = {"f1": classes == 2, "auroc": classes == 2 and scores, "top5": classes > 10}
    return [*first, *(name for name, used in more.items() if used)]


def per_class(sums: Mapping[str, Any], samples: float) -> Counts:
    """Return the right, true and predicted samples of each class, (3, K).

    Raises `ValueError` for counts that no `samples` have.
    """
    flat = np.array(sums.get(CONFUSION, sums.get(PER_CLASS)), np.float64)
    if CONFUSION in sums:
        table = flat.reshape(round(len(flat) ** 0.5), -1)
        found = np.stack([table.diagonal(), table.sum(1), table.sum(0)])
    else:
        found = flat.reshape(3, -1)
    right = flat.min() >= 0 and (found[0] <= found[1:]).all()
    if not right or not np.allclose(found[1:].sum(1), samples, rtol=ROUNDING):
        raise ValueError("no samples have these counts")
    return found


def of_classes(found: Counts) -> dict[str, float | None]:
    """Return the metrics in `OF_CLASSES`; `found`: as from `per_class`.

    The three of one class or a mean are None if one of two classes has no sample.
    """
    hit, truth, said = found
    there, samples = truth > 0, truth.sum()
    parts = ((hit, truth), (hit, said), (2 * hit, truth + said))
    recall, precision, f1 = (part / np.maximum(whole, LEAST) for part, whole in parts)
    chosen = truth + said > 0
    if len(truth) == 2:
        chosen = np.arange(2) == int(truth[1] <= truth[0])
    several = {
        name: float(values[chosen].mean()) if len(truth) != 2 or there.all() else None
        for name, values in (("f1", f1), ("precision", precision), ("recall", recall))
    }
    apart = (samples**2 - said @ said) * (samples**2 - truth @ truth)
    mcc = (hit.sum() * samples - truth @ said) / apart**0.5 if apart > 0 else 0.0
    return {"balanced_accuracy": float(recall[there].mean()), **several, "mcc": float(mcc)}


def keys_of(scores: Tensor, truth: Tensor, group: int | Tensor = 0) -> Tensor:
    """Return a key for each score, int64 (n,): group, score as float32, truth.

    `scores`: floats; NaN counts as the largest. `truth`: bools of the same shape, whether the
    sample is of the class that the score is about. `group`: the number of this class.
    """
    bits = scores.float().nan_to_num(torch.inf, torch.inf, -torch.inf).add(0.0).view(torch.int32)
    places = torch.where(bits < 0, ~bits, bits.long() + (1 << 31))  # -0.0 is 0.0 after add
    return ((places << 1) + truth + (torch.as_tensor(group, device=bits.device) << 33)).flatten()


def class_keys(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the keys of a batch; logits (B, K), truth: int64 (B,).

    Two classes have one score, the difference of the logits. Otherwise each class has the logarithm
    of its probability.
    """
    logits = logits.double()
    if logits.shape[1] == 2:
        return keys_of(logits[:, 1] - logits[:, 0], truth == 1)
    ids = torch.arange(logits.shape[1], device=logits.device)
    return keys_of(logits.log_softmax(1), truth[:, None] == ids, ids)


def of_scores(sums: Mapping[str, Any]) -> dict[str, float | None]:
    """Return AUROC and average precision from the sum `SCORES`.

    They are means over the classes with samples, and for AUROC also with samples of other classes;
    None if there is no such class.
    """
    keys = np.sort(np.array(sums[SCORES], np.int64))
    starts = np.flatnonzero(np.diff(keys >> 33, prepend=-1))
    areas, precisions = [], []
    for part in np.split(keys, starts[1:]):
        places = np.cumsum(np.diff(part >> 1, prepend=-1) > 0) - 1
        yes, no = (np.bincount(places, part % 2 == kind) for kind in (1, 0))
        if len(starts) == 1 and yes.sum() > no.sum():
            yes, no = no[::-1], yes[::-1]  # the first class is the rarer one
        if yes.sum() and no.sum():
            areas.append(yes @ (np.cumsum(no) - no / 2) / (yes.sum() * no.sum()))
        if yes.sum():
            above = np.cumsum(yes[::-1])
            precisions.append(yes[::-1] @ (above / (above + np.cumsum(no[::-1]))) / yes.sum())
    named = (("auroc", areas), ("average_precision", precisions))
    return {name: float(np.mean(each)) if each else None for name, each in named}
