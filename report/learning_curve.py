"""A run's learning curve: smoothed accuracies, and when the run reached an accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from report.run_archive import ArchivedRun

Row = dict[str, Any]


def smoothed(history: Iterable[Row], count: int = 1) -> list[Row]:
    """Return a history's rows, each with the mean accuracy of its last `count` evaluations.

    In asynchronous training at a constant learning rate a single evaluation is inexact: the next
    evaluation differs by up to one percentage point. The first returned row is that of evaluation
    number `count`. A run with fewer evaluations gives one row, its last.
    """
    rows = [row for row in history if row.get("accuracy") is not None]
    first = min(count, len(rows))
    return [
        rows[end - 1] | {"accuracy": fmean(row["accuracy"] for row in rows[end - first : end])}
        for end in range(max(first, 1), len(rows) + 1)
    ]


def smoothed_run(run: ArchivedRun, count: int) -> ArchivedRun:
    """Return a run in which every accuracy is the mean of the last `count` evaluations.

    The accuracies of the learning curve (`curve`) are means, too. Raises `ResultsError` for a run
    whose evaluations are not all stored.
    """
    if count == 1:
        return run
    rows = smoothed(run.rows(), count)
    means = [row["accuracy"] for row in rows]
    curve = {key: [row[key] for row in rows] for key in run.curve}
    numbers = run.numbers | {"evaluations": len(rows)}
    if means:
        numbers |= {"accuracy": means[-1], "best_accuracy": max(means)}
    return replace(run, numbers=numbers, curve=curve)


def stays_above(rows: Sequence[Row], accuracy: float) -> Row | None:
    """Return the first row from which on all rows have at least this accuracy (0..1); or None.

    If a run reaches the accuracy and falls below it again, this row is later than the row that
    `first_at` returns.
    """
    found = None
    for row in reversed(rows):
        if (row["accuracy"] or 0) < accuracy:
            break
        found = row
    return found


def first_at(rows: Iterable[Row], accuracy: float) -> Row | None:
    """Return the first row with at least this accuracy (0..1); or None."""
    return next((row for row in rows if (row["accuracy"] or 0) >= accuracy), None)
