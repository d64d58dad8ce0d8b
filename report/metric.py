"""A run's main metric: the value by which results are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from report.format import NOTHING, percent


class MainMetric(NamedTuple):
    """A metric's name, whether a higher value is better, and whether it is a share from 0 to 1."""

    name: str
    higher: bool = False
    share: bool = False

    def text(self, value: float | None) -> str:
        """Return a value as text: a share in percent, another value with four digits."""
        if self.share:
            return percent(value)
        return NOTHING if value is None else f"{value:.4g}"

    def best(self, values: list[float]) -> float | None:
        """Return the best of the values; None without values."""
        return (max if self.higher else min)(values, default=None)

    def reaches(self, value: float, bound: float) -> bool:
        """Return whether a value is at least as good as a bound."""
        return value >= bound if self.higher else value <= bound


ACCURACY, LOSS = MainMetric("accuracy", True, True), MainMetric("loss")


def main_of(result: Mapping[str, Any]) -> MainMetric:
    """Return a run's main metric, from its result; results of earlier versions have accuracies."""
    metrics = result.get("metrics")
    if metrics is None:
        return ACCURACY
    return next((MainMetric(**each) for each in metrics.values()), LOSS)
