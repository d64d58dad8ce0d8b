"""Metrics of an evaluation: the main one is the value by which results are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

LONGEST = 100  # characters of a metric's name


class Metric(NamedTuple):
    """A metric of an evaluation.

    `name`: its name in results. `higher`: whether a higher value is better. `share`: whether it is
    a share from 0 to 1, which tables show in percent.
    """

    name: str
    higher: bool = False
    share: bool = False

    @property
    def scale(self) -> float:
        """The factor from a value to the number that tables show: 100 for a share, else 1."""
        return 100.0 if self.share else 1.0

    @property
    def unit(self) -> str:
        """The text after a number in a table or a sentence."""
        return " %" if self.share else ""

    @property
    def heads(self) -> dict[str, str]:
        """Texts for the heads of columns, for the axes and the explanations of a page."""
        return {
            "metric": self.name,
            "metric_unit": f"{self.name}, %" if self.share else self.name,
            "points": ", points" if self.share else "",
            "side": "above" if self.higher else "below",
        }

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"test {self.name}{' (%)' if self.share else ''}"

    def bound(self, value: str) -> str:
        """Return a bound of the metric as text: "97 % accuracy", or "rmse 0.3"."""
        return f"{value} % {self.name}" if self.share else f"{self.name} {value}"

    def places(self, value: float) -> int:
        """Return the decimals with which a table shows a value: four digits, two for a share."""
        if self.share:
            return 2
        digits = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
        return min(max(3 - digits, 0), 9)

    def text(self, value: float | None) -> str:
        """Return a value as text: a share in percent, another with four digits; "-" for None."""
        if value is None:
            return "-"
        return f"{100 * value:.2f} %" if self.share else f"{value:.4g}"

    def best(self, values: list[float]) -> float | None:
        """Return the best of the values; None without values."""
        return (max if self.higher else min)(values, default=None)

    def worst(self, values: list[float]) -> float | None:
        """Return the worst of the values; None without values."""
        return (min if self.higher else max)(values, default=None)

    def reaches(self, value: float, bound: float) -> bool:
        """Return whether a value is at least as good as a bound."""
        return value >= bound if self.higher else value <= bound


ACCURACY, LOSS = Metric("accuracy", True, True), Metric("loss")


def fit_to_show(name: str) -> bool:
    """Return whether a metric's name is short and printable, as texts of pictures must be."""
    return 0 < len(name) <= LONGEST and name.isprintable()


def main_of(result: Mapping[str, Any]) -> Metric:
    """Return a run's main metric, from its result; results of earlier versions have accuracies.

    Raises `ValueError` for a damaged result.
    """
    metrics = result.get("metrics")
    if metrics is None:
        return ACCURACY
    try:
        found = next((Metric(**each) for each in metrics.values()), LOSS)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"metrics are {str(metrics)[:40]}") from error
    if [type(each) for each in found] != [str, bool, bool] or not fit_to_show(found.name):
        raise ValueError(f"the main metric is {str(found)[:80]}")
    return found
