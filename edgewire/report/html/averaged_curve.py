"""The mean curve of runs that differ in the seed, with a band."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from edgewire.report.curves import Curve, aligned
from edgewire.report.estimate import student
from edgewire.report.html.run_data import ReportGroup
from edgewire.report.runs import Row, number
from edgewire.report.summary import sent_bytes

OfRows = Callable[[Sequence[Row], ReportGroup], Sequence[float | None]]


@dataclass(frozen=True)
class AveragedCurve(Curve):
    """The mean of some runs' y at the mean of their x, and a band around it.

    `seeds`: how many runs. The band is the 95 % interval of the mean for three or more seeds, the
    lowest and highest value for two, and the mean itself for one.
    """

    seeds: int


def column(key: str, scale: float = 1) -> OfRows:
    """Return the function that reads a key of each row, times `scale`."""

    def read(rows: Sequence[Row], group: ReportGroup) -> list[float | None]:
        found = (number(row.get(key)) for row in rows)
        return [None if value is None else value * scale for value in found]

    return read


def all_bytes(way: str) -> OfRows:
    """Return the function that reads all bytes sent until each row."""
    return lambda rows, group: [sent_bytes(row, way) for row in rows]


def bytes_a_round(way: str) -> OfRows:
    """Return the function that computes the bytes per round between each row and the one before.

    Of an asynchronous run these are the bytes per reply. The first row has none.
    """
    return a_round(all_bytes(way))


def a_round(total: OfRows) -> OfRows:
    """Return the function that computes by how much a total grew per round before each row."""

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


def averaged(group: ReportGroup, x: OfRows, y: OfRows, log_x: bool = False) -> AveragedCurve | None:
    """Return the mean curve of a group's runs; None if no round has x and y in all of them.

    The curve has a point for each round in which every run has both. `log_x`: leave out points at
    0 or below.
    """
    across, up = aligned(
        zip(column("round")(rows, group), x(rows, group), y(rows, group), strict=True)
        for rows in group.histories.values()
    )
    if not len(across):
        return None
    mean, low, high = up.mean(axis=0), up.min(axis=0), up.max(axis=0)
    if (count := len(up)) > 2:
        half = student(count - 1) * up.std(axis=0, ddof=1) / sqrt(count)
        low, high = mean - half, mean + half
    return AveragedCurve(across, mean, low, high, count).drawn(log_x)
