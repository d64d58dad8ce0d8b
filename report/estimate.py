"""Means with their 95 % intervals, and the differences of runs with equal seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values; `half`: half the width of its 95 % interval, None for one value."""

    mean: float
    half: float | None
    count: int

    @property
    def noise(self) -> bool:
        """Whether the interval contains 0; False if there is no interval."""
        return self.half is not None and abs(self.mean) <= self.half


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one or more values, with its 95 % interval by Student's t."""
    count = len(values)
    if count == 1:
        return Estimate(values[0], None, 1)
    return Estimate(fmean(values), student(count - 1) * stdev(values) / sqrt(count), count)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the mean of `ours` - `theirs` over the seeds that both have; or None.

    `ours`, `theirs`: seed -> value. None: they have no seed in common.
    """
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return estimate(differences) if differences else None


@cache
def student(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for `freedom` degrees of freedom."""
    low, high = 1.9, 12.8  # bounds: 1.96 for infinitely many degrees of freedom, 12.71 for one
    for _ in range(60):  # bisection, down to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability that Student's t with `freedom` degrees of freedom is in [-t, t].

    By equations 26.7.3 and 26.7.4 of Abramowitz & Stegun.
    """
    angle, odd = atan(t / sqrt(freedom)), freedom % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cos(angle) ** 2
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
