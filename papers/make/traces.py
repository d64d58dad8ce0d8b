"""Learning curves of stored runs: a table's rows over rounds, and over the uplink's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewire.report.curves import Axis, Curve, column, mean_curve, y_axis
from edgewire.report.style import look
from papers.make.definitions import MAIN
from papers.make.picture import Picture, add_legend, logarithmic, panels
from papers.make.tables import FilledTable

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.figure import Figure

# the x axes of the panels
ACROSS = (
    Axis("round", column("round")),
    Axis("payloads sent by the nodes (MB)", column("uplink_bytes", 1e-6), log=True),
)


@dataclass(frozen=True)
class Trace:
    """A table's row as curves over rounds and over bytes up (`ACROSS`).

    `y`: the key of the y axis; `least`: the start of the y axis; `curves`: one for each x axis.
    """

    label: str
    y: str
    least: float | None
    curves: tuple[Curve, ...]


class Traces(Picture):
    """A panel for each x axis: rows as curves, with bands from the lowest to the highest seed."""

    def draw(self) -> Figure:
        """Return the figure. Raises `ModuleNotFoundError` without matplotlib."""
        figure, found = panels(len(ACROSS))
        for number, (axes, across) in enumerate(zip(found, ACROSS, strict=True)):
            for row, trace in enumerate(self.rows):
                trace.curves[number].add_to(axes, **look(row), label=trace.label)
            axes.set(xlabel=across.label)
            axes.grid(alpha=0.3)
        logarithmic(found[-1])
        found[0].set_ylabel(y_axis(self.rows[0].y, self.metric).label)
        if self.rows[0].least is not None:
            most = max(trace.curves[0].high.max() for trace in self.rows)
            room = 0.03 * abs(most - self.rows[0].least)
            found[0].set_ylim(self.rows[0].least, most + room)
        add_legend(figure, found[0])
        return figure


def traces(table: FilledTable) -> Traces:
    """Return the learning curves of the rows that have run, in the table's order."""
    return Traces(list(_traces(table)), table.metric)


def _traces(table: FilledTable) -> Iterator[Trace]:
    y, least, metric = table.definition.picture, table.definition.least, table.metric
    y = metric.name if y == MAIN else y
    for row in table.definition.rows:
        histories = [run.history() for run in table.runs_of(row)]
        found = [mean_curve(histories, x, y_axis(y, metric), interval=False) for x in ACROSS]
        if len(curves := tuple(each for each in found if each is not None)) == len(ACROSS):
            yield Trace(row.label.replace("`", ""), y, least, curves)
