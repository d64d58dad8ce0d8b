"""A run's learning curve: smoothed values, and when the run reached a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.runs import Row, Run

Each = TypeVar("Each")


def smoothed(run: Run, count: int) -> Run:
    """Return a run with the mean of the last `count` evaluations for each of its main metric.

    In asynchronous training at a constant learning rate a single evaluation is inexact: the next
    evaluation differs by up to one percentage point. The history has only rows with an accuracy,
    from that of evaluation number `count` on. A run with fewer evaluations has one row, its last.

    Raises `ResultsError` for a stored run whose evaluations are not all stored.
    """
    if count == 1:
        return run
    rows, name = run.evaluations(), run.metric.name
    first = min(count, len(rows))
    means = [
        rows[end - 1] | {name: fmean(row[name] for row in rows[end - first : end])}
        for end in range(max(first, 1), len(rows) + 1)
    ]
    result = {
        name: means[-1][name] if means else None,
        f"best_{name}": run.metric.best([row[name] for row in means]),
        "evaluations": len(means),
    }
    return replace(run, result=run.result | result, history=lambda: means)


def evenly(values: Sequence[Each], most: int) -> list[Each]:
    """Return at most `most` of the values, evenly chosen, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]


def stays_above(rows: Sequence[Row], bound: float, metric: MainMetric = ACCURACY) -> Row | None:
    """Return the first row from which on all rows reach a bound of the metric; or None.

    If a run reaches the bound and loses it again, this row is later than the row that
    `first_at` returns.
    """
    found = None
    for row in reversed(rows):
        if not metric.reaches(row[metric.name], bound):
            break
        found = row
    return found


def first_at(rows: Iterable[Row], bound: float, metric: MainMetric = ACCURACY) -> Row | None:
    """Return the first row that reaches a bound of the metric; or None."""
    return next((row for row in rows if metric.reaches(row[metric.name], bound)), None)
