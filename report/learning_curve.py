"""A run's learning curve: smoothed accuracies, and when the run reached an accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from report.runs import Row, Run


def smoothed(run: Run, count: int) -> Run:
    """Return a run in which every accuracy is the mean of the last `count` evaluations.

    In asynchronous training at a constant learning rate a single evaluation is inexact: the next
    evaluation differs by up to one percentage point. The history has only rows with an accuracy,
    from that of evaluation number `count` on. A run with fewer evaluations has one row, its last.

    Raises `ResultsError` for a stored run whose evaluations are not all stored.
    """
    if count == 1:
        return run
    rows = run.evaluations()
    first = min(count, len(rows))
    means = [
        rows[end - 1] | {"accuracy": fmean(row["accuracy"] for row in rows[end - first : end])}
        for end in range(max(first, 1), len(rows) + 1)
    ]
    result = {
        "accuracy": means[-1]["accuracy"] if means else None,
        "best_accuracy": max((row["accuracy"] for row in means), default=None),
        "evaluations": len(means),
    }
    return replace(run, result=run.result | result, history=lambda: means)


def stays_above(rows: Sequence[Row], accuracy: float) -> Row | None:
    """Return the first row from which on all rows have at least this accuracy (0..1); or None.

    If a run reaches the accuracy and falls below it again, this row is later than the row that
    `first_at` returns.
    """
    found = None
    for row in reversed(rows):
        if row["accuracy"] < accuracy:
            break
        found = row
    return found


def first_at(rows: Iterable[Row], accuracy: float) -> Row | None:
    """Return the first row with at least this accuracy (0..1); or None."""
    return next((row for row in rows if row["accuracy"] >= accuracy), None)
