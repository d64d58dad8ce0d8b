"""Axes of a report's pictures: their values, range, scale and ticks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from edgewire.report.html.run_data import ReportGroup
from edgewire.report.runs import Row, number, sent_bytes
from edgewire.report.style import PLAIN, Ticks, set_scale

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes

OfRows = Callable[[Sequence[Row], ReportGroup], Sequence[float | None]]


@dataclass(frozen=True)
class Axis:
    """An axis: its label, the values of a run's rows, the text of a tick, and its scale."""

    label: str
    of: OfRows
    ticks: Ticks = PLAIN
    log: bool = False


def column(key: str, scale: float = 1) -> OfRows:
    """Return the function that reads a key of each row, times `scale`."""

    def read(rows: Sequence[Row], group: ReportGroup) -> list[float | None]:
        found = (number(row.get(key)) for row in rows)
        return [None if value is None else value * scale for value in found]

    return read


def all_bytes(way: str) -> OfRows:
    """Return the function that reads all bytes sent until each row."""
    return lambda rows, group: [sent_bytes(row, way) for row in rows]


def a_round(total: OfRows) -> OfRows:
    """Return the function that computes by how much a total grew per round before each row.

    Of an asynchronous run this is the growth per reply. The first row has none.
    """

    def read(rows: Sequence[Row], group: ReportGroup) -> list[float | None]:
        totals, rounds = total(rows, group), column("round")(rows, group)
        grown: list[float | None] = [None] * min(len(rows), 1)
        for (t0, t1), (r0, r1) in zip(pairwise(totals), pairwise(rounds), strict=True):
            known = None not in (t0, t1, r0, r1)
            steps = (r1 or 0) - (r0 or 0)
            grown.append(((t1 or 0) - (t0 or 0)) / steps if known and steps > 0 else None)
        return grown

    return read


def density(rows: Sequence[Row], group: ReportGroup) -> list[float | None]:
    """Return the share of entries that the nodes sent between each row and the one before, in %."""
    sent, whole = (
        a_round(column(key))(rows, group) for key in ("uplink_entries", "uplink_entries_whole")
    )
    return [
        100 * part / full if part is not None and full else None
        for part, full in zip(sent, whole, strict=True)
    ]


def limit(axes: Axes, values: Sequence[float]) -> None:
    """Set the range of the y axis by some values. Outliers among them are cut off."""
    known = np.array([value for value in values if isfinite(value)])
    if not len(known):
        return
    low, high = float(known.min()), float(known.max())
    near, far = (float(value) for value in np.quantile(known, [0.02, 0.9]))
    if high - low > 20 * (far - near) > 0:  # a run that diverged
        low, high = near, far
    free = max(0.05 * (high - low), 0.01 * abs(high), 1e-9)
    axes.set_ylim(low - free, high + free)


def finish(axes: Axes, x: Axis, y: Axis) -> None:
    """Set the labels, the scales and the ticks of both axes."""
    axes.set(xlabel=x.label, ylabel=y.label)
    axes.margins(x=0.02)
    set_scale(axes, "x", x.ticks, x.log)
    set_scale(axes, "y", y.ticks, y.log)
