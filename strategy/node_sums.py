"""Adds up the sums of nodes' evaluations (`Objective.sums`)."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Message, MetricRecord

from edgewire.compression.flower.headers import EXAMPLES
from edgewire.compression.flower.records import records
from edgewire.compression.flower.server.reply_checks import most_in_group
from edgewire.task.objectives.base import KEYS

EXACT = 1e-9  # a sum that was a mean is a whole number if it is nearer to one than this share of it


def take_keys(replies: Sequence[Message]) -> tuple[dict[str, Any], float]:
    """Remove the lists of keys from checked replies; return the joined lists, and the samples.

    A strategy of Flower's cannot average lists of several lengths. The samples are the sum of the
    nodes' weights. Of a node that has a smaller weight than samples, as many keys are used.
    """
    joined: dict[str, list[int]] = {}
    samples = 0.0
    for reply in replies:
        for _, metrics in records(reply.content, MetricRecord) if reply.has_content() else ():
            weight = cast(float, metrics.get(EXAMPLES, 0))
            samples += weight
            for name in [name for name in metrics if name.endswith(KEYS)]:
                keys = cast(list[int], metrics.pop(name))
                share = min(weight / most_in_group(np.array(keys)), 1.0)
                joined.setdefault(name, []).extend(keys[: round(len(keys) * share)])
    return joined, samples


def totals(means: Mapping[str, Any], samples: float) -> dict[str, Any]:
    """Return means over samples times the number of samples; counts are whole numbers again."""
    found = dict[str, Any]()
    for name, value in means.items():
        total = np.array(value, np.float64) * samples
        near = np.rint(total)
        exact = np.abs(total - near) <= EXACT * np.maximum(np.abs(total), 1.0)
        found[name] = np.where(exact, near, total).tolist()
    return found
