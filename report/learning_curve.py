"""What the course of a run tells beyond its end: where it settled, when it reached an accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from report.kept import KeptRun

Row = dict[str, Any]


def smoothed(history: Iterable[Row], count: int = 1) -> list[Row]:
    """Return a history's rows with the mean accuracy of `count` evaluations, that one the last.

    A single evaluation of asynchronous training at a constant rate says little: it is up to a point
    from the next one. The first row is that of evaluation number `count`, or the last one of a run
    that has fewer.
    """
    rows = [row for row in history if row.get("accuracy") is not None]
    first = min(count, len(rows))
    return [
        rows[end - 1] | {"accuracy": fmean(row["accuracy"] for row in rows[end - first : end])}
        for end in range(max(first, 1), len(rows) + 1)
    ]


def settled(run: KeptRun, count: int) -> KeptRun:
    """Return a run whose accuracies are means of `count` evaluations, in its course, too.

    Raises `ResultsError` for one of which not all evaluations are kept.
    """
    if count == 1:
        return run
    rows = smoothed(run.rows(), count)
    means = [row["accuracy"] for row in rows]
    course = {key: [row[key] for row in rows] for key in run.course}
    numbers = run.numbers | {"evaluations": len(rows)}
    if means:
        numbers |= {"accuracy": means[-1], "best_accuracy": max(means)}
    return replace(run, numbers=numbers, course=course)


def settled_at(rows: Sequence[Row], accuracy: float) -> Row | None:
    """Return the row from which on none has less than this accuracy, 0..1; None if there is none.

    A course that reaches an accuracy by chance and falls again is there at a later row than
    `first_at` says.
    """
    found = None
    for row in reversed(rows):
        if (row["accuracy"] or 0) < accuracy:
            break
        found = row
    return found


def first_at(rows: Iterable[Row], accuracy: float) -> Row | None:
    """Return the first row with at least this accuracy, 0..1; None if none has."""
    return next((row for row in rows if (row["accuracy"] or 0) >= accuracy), None)
