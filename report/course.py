"""What the course of a run tells beyond its end: where it settled, when it reached an accuracy."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from report.jobs import Job

Row = dict[str, Any]


def smoothed(job: Job, count: int = 1) -> list[Row]:
    """Return the history's rows with the mean accuracy of `count` evaluations, that one the last.

    A single evaluation of asynchronous training at a constant rate says little: it is up to a point
    from the next one. The first row is that of evaluation number `count`, or the last one of a run
    that has fewer.
    """
    rows = [row for row in job.history() if row.get("accuracy") is not None]
    first = min(count, len(rows))
    return [
        rows[end - 1] | {"accuracy": fmean(row["accuracy"] for row in rows[end - first : end])}
        for end in range(max(first, 1), len(rows) + 1)
    ]


def first_at(rows: list[Row], accuracy: float) -> Row | None:
    """Return the first row with at least this accuracy, 0..1; None if none has."""
    return next((row for row in rows if row["accuracy"] >= accuracy), None)
