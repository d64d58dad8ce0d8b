"""What no strategy steps: statistics, integers and exact tensors, mixed of what nodes report.

A strategy's optimiser would lead them anywhere: a variance below zero makes the model NaN. Here
each entry stays between the smallest and the largest that was reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)
from numpy.typing import NDArray

from ..own import Own
from ..stages import PayloadError
from ..statistics import Split, exact_tensors, split, variances
from .arrays import Vector, flat_record, to_vector
from .form import Form, Model

ROBUST = (Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum)


def wrapped_by(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and those that it wraps, the innermost last."""
    found = [strategy]
    while isinstance(inner := getattr(found[-1], "strategy", None), Strategy):
        found.append(inner)
    return found


class Reported(NamedTuple):
    """What one node says of the tensors that no strategy steps."""

    weight: float
    statistics: Vector
    own: tuple[Own, ...]


class Mixing:
    """Cuts models into what a strategy sees and what it does not, and puts them together again.

    A robust strategy (Krum, median, trimmed mean, ...) takes nothing but values that nodes sent,
    and does so to be safe from some of them: it sees float32 statistics itself, and tensors of
    their own type are mixed by their median. For all others it is the mean, by the nodes' weights.
    """

    def __init__(self, strategy: Strategy, form: Form) -> None:
        self._robust = isinstance(wrapped_by(strategy)[-1], ROBUST)
        statistics = exact_tensors(form.layout)
        seen_whole = self._robust or not statistics
        self._split: Split | None = None if seen_whole else split(form.layout, statistics)
        self._variances = variances(form.layout)

    def seen(self, model: Model) -> ArrayRecord:
        """Return what the strategy sees of a model: one flat Array."""
        return flat_record(self._split.gather(model.vector) if self._split else model.vector)

    def with_seen(self, arrays: ArrayRecord, model: Model) -> Model:
        """Return a model with what a strategy made of the part that it sees."""
        vector = to_vector(arrays)
        if self._split:
            vector = self._split.merge(vector, self._split.gather_exact(model.vector))
        return Model(vector, model.own)

    def reported(self, model: Model, weight: float) -> Reported:
        """Return what a node's model says; `PayloadError` for a variance below 0."""
        for start, stop in self._variances:
            if (model.vector[start:stop] < 0).any():
                raise PayloadError("its update holds a running variance below 0")
        statistics = self._split.gather_exact(model.vector) if self._split else model.vector[:0]
        return Reported(weight, statistics, model.own)

    def mixed(self, arrays: ArrayRecord, reports: Sequence[Reported]) -> Model:
        """Return the model: what a strategy made of its part, the rest from the nodes."""
        vector, weights = to_vector(arrays), [report.weight for report in reports]
        if self._split:
            statistics = mean([report.statistics for report in reports], weights)
            vector = self._split.merge(vector, statistics)
        columns = zip(*(report.own for report in reports), strict=True)
        own = [
            each[0]._replace(array=self._mix([tensor.array for tensor in each], weights))
            for each in columns
        ]
        return Model(vector, tuple(own))

    def _mix(self, values: list[NDArray[Any]], weights: list[float]) -> NDArray[Any]:
        return median(values) if self._robust else mean(values, weights)


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
