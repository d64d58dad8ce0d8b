"""Axes of a report's pictures: their values, range, scale, ticks, the numbers at curves' ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewire.report.format import human_seconds
from edgewire.report.html.run_data import ReportGroup
from edgewire.report.runs import Row, number, sent_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OfRows = Callable[[Sequence[Row], ReportGroup], Sequence[float | None]]
Ticks = Callable[[float], str]
NEAR, LINE = 24, 12  # points: ends of curves that are close; the height of a number
MOST_NUMBERS = 6  # numbers at ends that are close


@dataclass(frozen=True)
class Axis:
    """An axis: its label, the values of a run's rows, the text of a tick, and its scale.

    `whole`: its ticks are whole numbers.
    """

    label: str
    of: OfRows
    ticks: Ticks | None = None
    log: bool = False
    whole: bool = False


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


def limit(axes: Axes, values: Sequence[float], least: float = 0.05,
          bars: Sequence[tuple[float, float, float]] = ()) -> None:  # fmt: skip
    """Set the range of the y axis by the drawn values. Long bands and outliers are cut off.

    `least`: the free space above and below, as a share of the range. `bars`: the middle, the
    low and the high end of each bar; bars are shown whole, unless their middle is an outlier.
    """
    known = np.array([value for value in values if isfinite(value)])
    if not len(known):
        return
    low, high = float(known.min()), float(known.max())
    near, far = (float(value) for value in np.quantile(known, [0.02, 0.9]))
    if high - low > 20 * (far - near) > 0:  # a run that diverged
        low, high = near, far
    inside = [bar for bar in bars if low <= bar[0] <= high]
    low = min([low, *(bar[1] for bar in inside if isfinite(bar[1]))])
    high = max([high, *(bar[2] for bar in inside if isfinite(bar[2]))])
    free = max(least * (high - low), 0.01 * abs(high), 1e-9)
    axes.set_ylim(low - free, high + free)


def finish(axes: Axes, x: Axis, y: Axis) -> None:
    """Set the labels, the scales and the ticks of both axes."""
    axes.set_xlabel(x.label)
    axes.set_ylabel(y.label)
    for which, axis in (("x", x), ("y", y)):
        set_scale(axes, which, axis)
    axes.margins(x=0.02)


def set_scale(axes: Axes, which: str, axis: Axis) -> None:
    """Set the scale and the ticks of one axis. `which`: "x" or "y"."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    drawn = axes.xaxis if which == "x" else axes.yaxis
    if axis.log and (found := _positive(axes, which)) is not None:
        low, high = found
        getattr(axes, f"set_{which}scale")("log")
        wide = 10 ** max(np.log10(high / low) * 0.05, 0.05)
        getattr(axes, f"set_{which}lim")(low / wide, high * wide)
        ticks_of = _clock_ticks if axis.ticks is human_seconds else log_ticks
        drawn.set_major_locator(FixedLocator(ticks_of(low / wide, high * wide)))
        drawn.set_minor_locator(NullLocator())
    elif which == "x":
        drawn.set_major_locator(MaxNLocator(5, integer=axis.whole))
    if axis.ticks is not None:
        ticks = _short_seconds if axis.ticks is human_seconds else axis.ticks
        drawn.set_major_formatter(FuncFormatter(lambda value, place: ticks(value)))
    elif drawn.get_scale() == "log":  # the default writes powers in the notation of TeX
        drawn.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.6g}"))


def _positive(axes: Axes, which: str) -> tuple[float, float] | None:
    """Return the smallest and the largest value above 0 that the lines have on an axis."""
    data = [getattr(line, f"get_{which}data")() for line in axes.lines]
    known = np.concatenate([np.asarray(each, dtype=float).ravel() for each in data])
    known = known[np.isfinite(known) & (known > 0)]
    return (float(known.min()), float(known.max())) if len(known) else None


def number_ends(axes: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Write the numbers of groups at the ends of their curves, so that none covers another.

    `ends`: for each curve its number, and x and y of its end. Where many curves end close to each
    other there is no room for numbers; their colours and markers tell them apart.
    """
    low, high = axes.get_ylim()
    scale = 72 / axes.figure.dpi  # points of a pixel
    at = []
    for key, x, end in ends:
        if not isnan(end):
            y = min(max(end, low), high)
            right, up = axes.transData.transform((x, y))
            at.append((float(right) * scale, float(up) * scale, key, x, y))
    for near in _clusters(sorted(at)):
        ordered = sorted(near, key=lambda end: end[1])
        top = float(axes.transAxes.transform((0, 1))[1]) * scale
        places = _apart([end[1] for end in ordered], LINE, top)
        if len(ordered) > MOST_NUMBERS:
            continue
        for place, (_, here, key, x, y) in zip(places, ordered, strict=True):
            axes.annotate(
                key, (x, y), (5, place - here - 3), textcoords="offset points", fontsize=10,
                annotation_clip=False,
            )  # fmt: skip


def _clusters(ends: Sequence[tuple[float, float, str, float, float]]) -> list[list[Any]]:
    """Return ends of curves, sorted by x, in lists of those that are close to each other."""
    found: list[list[Any]] = []
    for end in ends:
        if found and end[0] - found[-1][-1][0] < NEAR:
            found[-1].append(end)
        else:
            found.append([end])
    return found


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


def log_ticks(low: float, high: float) -> list[float]:
    """Return at most seven round numbers between two numbers, for a logarithmic axis."""
    found: list[float] = []
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    for bases in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [base * 10.0**power for power in range(first, last + 1) for base in bases]
        inside = [tick for tick in ticks if low <= tick <= high]
        if found and len(inside) > 7:
            break
        found = inside
    return found[:: -(-len(found) // 7) or 1]


def _clock_ticks(low: float, high: float) -> list[float]:
    """Return at most six times between two numbers of seconds that people call round."""
    small = [base * 10.0**power for power in range(-6, 1) for base in (1, 2, 5)]
    minutes = [60.0 * count for count in (1, 2, 5, 10, 30)]
    hours = [3600.0 * count for count in (1, 2, 5, 12)]
    days = [86400.0 * base * 10**power for power in range(6) for base in (1, 2, 5)]
    inside = [t for t in (*small, 10, 20, 30, *minutes, *hours, *days) if low <= t <= high]
    return inside[:: -(-len(inside) // 6) or 1]


def _short_seconds(seconds: float) -> str:
    """Return the text of a tick: "0.5 s", "2 min", "5 h" or "3 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return human_seconds(seconds)


def shortened(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters; a longer one keeps its start and its end."""
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[: longest - 1 - half]}…{text[-half:]}"
