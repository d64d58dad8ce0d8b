"""Courses of kept runs: a table's rows as curves over rounds, and over what the nodes sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from report.curves import STYLES, X, Y
from report.kept import KeptRun
from report.page import FilledTable
from report.picture import Picture, add_legend, logarithmic, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = ("round", "uplink_bytes")  # the panels' x axes; the second is logarithmic


@dataclass(frozen=True)
class Trace:
    """A row: its name, and at each evaluation that all seeds share x, mean, least and most y.

    `x` has a list for each of `ACROSS`; all are in the axes' units.
    """

    label: str
    y: str
    least: float | None
    x: tuple[tuple[float, ...], ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Traces(Picture):
    """A panel for each of `ACROSS`, with `Trace`s as curves in bands from least to most."""

    def draw(self) -> Figure:
        """Return the figure. Raises `ModuleNotFoundError`."""
        figure, found = panels(len(ACROSS))
        for number, (axes, key) in enumerate(zip(found, ACROSS, strict=True)):
            self._draw_panel(axes, number)
            axes.set(xlabel=X[key][0])
            axes.grid(alpha=0.3)
        logarithmic(found[-1])
        found[0].set_ylabel(Y[self.rows[0].y][0])
        if self.rows[0].least is not None:
            most = max(max(trace.high) for trace in self.rows)
            room = 0.03 * abs(most - self.rows[0].least)
            found[0].set_ylim(self.rows[0].least, most + room)
        add_legend(figure, found[0])
        return figure

    def _draw_panel(self, axes: Axes, number: int) -> None:
        for row, trace in enumerate(self.rows):
            colour, style = f"C{row % 10}", STYLES[row // 10 % len(STYLES)]
            x = trace.x[number]
            axes.plot(x, trace.mean, label=trace.label, color=colour, linestyle=style)
            axes.fill_between(x, trace.low, trace.high, alpha=0.15, linewidth=0, color=colour)


def traces(table: FilledTable) -> Traces:
    """Return the courses of the rows that have run, in the table's order."""
    return Traces(list(_traces(table)))


def _traces(table: FilledTable) -> Iterator[Trace]:
    y, least = table.definition.picture, table.definition.least
    for row in table.definition.rows:
        if points := _matched(table.runs_of(row), y):
            xs = tuple(
                tuple(fmean(point[at] for point in seeds) / X[key][1] for seeds in points)
                for at, key in enumerate(ACROSS)
            )
            values = [[point[-1] / Y[y][1] for point in seeds] for seeds in points]
            mean, low, high = (
                tuple(map(fmean, values)),
                tuple(map(min, values)),
                tuple(map(max, values)),
            )
            yield Trace(row.label.replace("`", ""), y, least, xs, mean, low, high)


def _matched(runs: Sequence[KeptRun], y: str) -> list[list[tuple[float, ...]]]:
    """Return (*ACROSS, y) of each seed, for the rounds at which all seeds have them, in order."""
    seeds = [dict(_points(run, y)) for run in runs]
    rounds = sorted(set.intersection(*map(set, seeds))) if seeds else []
    return [[points[at] for points in seeds] for at in rounds]


def _points(run: KeptRun, y: str) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Yield a run's round and values, where it has all."""
    keys = (*ACROSS, y)
    if all(key in run.course for key in keys):
        for row in zip(*(run.course[key] for key in keys), strict=True):
            values = tuple(value for value in row if value is not None)
            if len(values) == len(keys):
                yield values[0], values
