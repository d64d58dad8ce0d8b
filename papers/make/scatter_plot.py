"""The main metric against bytes in each direction: rows of a table as points with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from edgewire.report.curves import front
from edgewire.report.estimate import estimate
from edgewire.report.runs import by_seed
from edgewire.report.table import sent as whole_sent
from papers.make.picture import MEGABYTE, Picture, add_legend, logarithmic, panels
from papers.make.tables import FilledTable

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = {"uplink_bytes": "sent by the nodes (MB)", "downlink_bytes": "sent by the server (MB)"}
NEAR = (4, 4)  # offset of a marker's number (as in the legend): typographic points right and up
MARKERS = "osD^v<>Pp*"  # the markers: with ten colours they make a hundred different points


@dataclass(frozen=True)
class Point:
    """A table's row as a point: its label, its main metric, and its bytes in each direction.

    `accuracy`: the main metric, a share in %, with half the width of its interval. `least`: the
    start of the y axis; None: the lowest row sets the start.
    """

    label: str
    accuracy: float
    half: float | None
    sent: tuple[float, ...]
    least: float | None = None


class Scatter(Picture):
    """A panel of `Point`s for each direction; points below the y axis' start are at the border.

    A line marks each panel's front: to its right and on its worse side, every point has one on the
    line that sends no more bytes and is no worse.
    """

    def draw(self) -> Figure:
        """Return the figure. Raises `ModuleNotFoundError` without matplotlib."""
        figure, found = panels(len(WAYS))
        for number, (axes, label) in enumerate(zip(found, WAYS.values(), strict=True)):
            self._draw_panel(axes, number)
            self._draw_front(axes, number)
            axes.set(xlabel=label)
            logarithmic(axes)
            axes.grid(alpha=0.3)
        found[0].set_ylabel(self.metric.axis)
        if (least := self.rows[0].least) is not None:  # a long error bar must not set the range
            most = max(point.accuracy for point in self.rows)
            found[0].set_ylim(least, most + 0.1 * abs(most - least))
        add_legend(figure, found[0])
        return figure

    def _draw_front(self, axes: Axes, way: int) -> None:
        """Draw the front as steps, up to the right end of the panel."""
        sent = [point.sent[way] / MEGABYTE for point in self.rows]
        best = front(sent, [point.accuracy for point in self.rows], higher=self.metric.higher)
        x, y = [sent[i] for i in best], [self.rows[i].accuracy for i in best]
        axes.step([*x, max(sent)], [*y, y[-1]], where="post", color="0.5", lw=1, zorder=0.5)
        axes.lines[-1].set(label="front" if len(self.rows) > 1 else "_front", linestyle="dashed")

    def _draw_panel(self, axes: Axes, way: int) -> None:
        for number, point in enumerate(self.rows):
            x, y, half = point.sent[way] / MEGABYTE, point.accuracy, point.half
            name = str(number + 1)
            if point.least is not None and y < point.least:
                name, y, half = f"{name}: {y:.1f} ↓", point.least, None
            axes.annotate(name, (x, y), NEAR, textcoords="offset points", fontsize=8, clip_on=True)
            axes.errorbar(
                x,
                y,
                yerr=half,
                label=f"{number + 1}  {point.label}",
                color=f"C{number % 10}",
                marker=MARKERS[(number + number // 10) % len(MARKERS)],
                linestyle="none",
                capsize=3,
            )


def scatter(table: FilledTable) -> Scatter:
    """Return the rows that have run and were evaluated, in the table's order.

    If the table has a column of all bytes, the points' bytes are those of whole messages.
    """
    return Scatter(list(_points(table)), table.metric)


def _points(table: FilledTable) -> Iterator[Point]:
    whole = any(name.startswith("all ") for name in table.definition.columns)
    for row in table.definition.rows:
        runs = table.runs_of(row)
        values = by_seed(runs, table.metric.name, table.metric.scale).values()
        if (found := estimate(values)) is None:
            continue
        keys = [whole_sent(way.removesuffix("_bytes")) if whole else way for way in WAYS]
        sent = tuple(fmean(by_seed(runs, key).values()) for key in keys)
        label = row.label.replace("`", "")
        yield Point(label, found.mean, found.half, sent, table.definition.least)
