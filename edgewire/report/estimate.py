"""Means of runs with their 95 % intervals, and the differences of runs with equal seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import fmean, stdev

CONFIDENCE = 0.95
Z = 1.959964  # the two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values; `std`: their sample standard deviation, None for one value."""

    mean: float
    std: float | None
    count: int

    @property
    def half(self) -> float | None:
        """Half the width of the mean's 95 % interval by Student's t; None for one value."""
        return None if self.std is None else student(self.count - 1) * self.std / sqrt(self.count)

    @property
    def noise(self) -> bool:
        """Whether the interval contains 0; False if there is no interval."""
        return self.half is not None and abs(self.mean) <= self.half

    def text(self, places: int = 2) -> str:
        """Return a text such as '85.12 ± 0.21'; only the mean if there is no interval."""
        mean = f"{self.mean:z.{places}f}"  # z: zero has no sign
        return mean if self.half is None else f"{mean} ± {self.half:.{places}f}"


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share that was found in `count` independent samples."""
    square = Z * Z / count
    middle = (share + square / 2) / (1 + square)
    half = sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def estimate(values: Iterable[float]) -> Estimate | None:
    """Return the mean of the values; None if there are none."""
    found = list(values)
    if not found:
        return None
    return Estimate(fmean(found), stdev(found) if len(found) > 1 else None, len(found))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the mean of `ours` - `theirs` over the seeds that both have; or None.

    `ours`, `theirs`: seed -> value. None: they have no seed in common.
    """
    return estimate(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys())


@cache
def student(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for `freedom` degrees of freedom."""
    # imported here: `edgewire.report.table` shows no interval. This function is `scipy.stats.t.ppf`
    # without checks of its input; `scipy.stats` takes five times as long to import.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
