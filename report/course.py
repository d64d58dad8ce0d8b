"""What the course of a run tells beyond its end: where it settled, when it reached an accuracy."""

from __future__ import annotations

from itertools import islice
from statistics import fmean
from typing import Any

from report.results import Job


def settled(job: Job, count: int) -> float | None:
    """Return the mean accuracy of a run's last `count` evaluations, or of all, if fewer; or None.

    A single evaluation of asynchronous training at a constant rate says little: it is up to a point
    from the next one.
    """
    last = [row["accuracy"] for row in islice(reversed(_evaluations(job)), count)]
    return fmean(last) if last else None


def first_at(job: Job, accuracy: float) -> dict[str, Any] | None:
    """Return the first row of the history with at least this accuracy, 0..1; None if none has."""
    return next((row for row in _evaluations(job) if row["accuracy"] >= accuracy), None)


def _evaluations(job: Job) -> list[dict[str, Any]]:
    """Return the rows that hold an accuracy."""
    return [row for row in job.history() if row.get("accuracy") is not None]
