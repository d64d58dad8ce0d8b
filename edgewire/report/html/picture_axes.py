"""Axes of a report's pictures: their values, range, scale, ticks, the numbers at curves' ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, isnan
from typing import TYPE_CHECKING, Literal

import numpy as np

from edgewire.report.html.run_data import ReportGroup
from edgewire.report.runs import Row, number, sent_bytes

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes

OfRows = Callable[[Sequence[Row], ReportGroup], Sequence[float | None]]
Ticks = Callable[[float], str]
PLAIN: Ticks = "{:,.6g}".format
LINE = 12  # points: the height of a number


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


def set_scale(axes: Axes, which: Literal["x", "y"], ticks: Ticks, log: bool = False) -> None:
    """Set the scale of one axis, and the texts of its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    drawn = axes.xaxis if which == "x" else axes.yaxis
    if log and isfinite(drawn.get_minpos()):  # a value is above 0
        axes.set(**{f"{which}scale": "log"})
        low, high = drawn.get_view_interval()
        near = high < 100 * low
        drawn.set_major_locator(LogLocator(subs=(1, 2, 5) if near else (1,), numticks=7))
        drawn.set_minor_locator(NullLocator())
    elif which == "x":
        axes.locator_params(axis="x", nbins=6, steps=(1, 2, 5, 10))
    # the default writes powers in the notation of TeX
    drawn.set_major_formatter(FuncFormatter(lambda value, place: ticks(value)))


def number_ends(axes: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Write the numbers of groups at the ends of their curves, so that none covers another.

    `ends`: for each curve its number, and x and y of its end.
    """
    low, high = axes.get_ylim()
    scale = 72 / axes.figure.dpi  # points of a pixel
    found = []
    for key, x, end in ends:
        if not isnan(end):
            y = min(max(end, low), high)
            found.append((float(axes.transData.transform((x, y))[1]) * scale, key, x, y))
    found.sort()
    top = float(axes.transAxes.transform((0, 1))[1]) * scale
    places = _apart([height for height, *_ in found], LINE, top)
    for place, (height, key, x, y) in zip(places, found, strict=True):
        axes.annotate(
            key, (x, y), (5, place - height - 3), textcoords="offset points", fontsize=10,
            annotation_clip=False,
        )  # fmt: skip


def _apart(places: Sequence[float], step: float, top: float) -> list[float]:
    """Return rising places at least `step` apart, moved as little as that needs, below `top`."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + step) if found else place)
    limit = top
    for at in reversed(range(len(found))):
        found[at] = min(found[at], limit)
        limit = found[at] - step
    return found
