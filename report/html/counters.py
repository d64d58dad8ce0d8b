"""Reads numbers from the results and histories of runs, which may lack them or be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report.columns import Measure, plain, sent
from report.runs import LARGEST, Run

Row = dict[str, Any]


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number of a row, or None if the row lacks it or holds something else."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return float(value)


def sent_bytes(row: Mapping[str, Any], way: str) -> float | None:
    """Return all bytes that a run had sent at a row of its history; None if the row lacks them.

    `way`: "uplink" or "downlink".
    """
    payload = number(row, f"{way}_bytes")
    if payload is None:
        return None
    return payload + sum(number(row, f"{way}_{what}_bytes") or 0 for what in ("other", "header"))


def sent_of(run: Run, way: str) -> float:
    """Return all bytes that a run sent in a direction, "uplink" or "downlink"."""
    return _call(sent(way), run)


def plain_of(run: Run, way: str) -> float:
    """Return the bytes that Flower would have sent without compression, as `sent_of`."""
    return _call(plain(way), run)


def _call(measure: Measure, run: Run) -> float:
    assert callable(measure)
    return float(measure(run.result) or 0)
