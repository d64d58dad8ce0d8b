"""The mean and the median of what nodes report, within what was reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def mean(values: Sequence[NDArray[Any]], weights: Sequence[float]) -> NDArray[Any]:
    """Return the weighted mean in the arrays' own type, within what they hold.

    Integers are rounded; where all agree it is their value to the last bit.
    """
    low, high = np.minimum.reduce(values), np.maximum.reduce(values)
    kind = values[0].dtype
    wide: Any = np.float64 if kind.kind in "fb" else np.longdouble
    total = np.zeros(values[0].shape, dtype=wide)
    shares = np.asarray(weights) / np.max(weights)  # a sum of weights may be beyond float64
    for value, share in zip(values, shares / np.sum(shares), strict=True):
        if share:  # infinity times 0 is no number
            total += value.astype(wide) * wide(share)
    if kind.kind == "b":
        return np.asarray(total >= 0.5)
    if kind.kind in "iu":
        total = np.rint(total)
    low_wide, high_wide = low.astype(wide), high.astype(wide)
    total = np.where(total == total, total, low_wide)  # infinities of both signs
    inside = np.clip(total, low_wide, high_wide).astype(kind)
    mixed: NDArray[Any] = np.where(low == high, low, np.clip(inside, low, high))
    return mixed


def median(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the median of each entry, the lower one of two: always a value that was sent."""
    stacked = np.stack(values)
    middle = (len(stacked) - 1) // 2
    return np.asarray(np.partition(stacked, middle, axis=0)[middle])  # of 0-d it is a scalar
