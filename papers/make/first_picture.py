"""README's picture, docs/first.png: the gain of methods over FedAvg against their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewire.report.reader import ResultsError
from papers.make.picture import Picture
from papers.make.tables import COLUMN, ROW, FilledBenchmarkTable

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST, MOST = -13, 2  # of the y axis, in points; a value below it is written at the border
KEY = """●  mean over the tasks, with its 95 % interval
−  the worst task
one seed a task, but five of FedAvg, DiLoCo and edgewire"""


@dataclass(frozen=True)
class Method:
    """A method: its name, how many times fewer bytes it sends, and its gains in points.

    `half`: half the width of the interval of `mean`; `worst`: the gain on the worst task; `ours`:
    whether it is emphasised; `left`, `below`: whether the name stands there.
    """

    label: str
    ours: bool
    left: bool
    below: bool
    fewer: float
    mean: float
    half: float
    worst: float


class FirstPicture(Picture):
    """A point for each `Method` with its interval, and a mark for its worst task."""

    def draw(self) -> Figure:
        """Return the figure, 1200 x 420 pixels at 100 dots an inch."""
        from matplotlib.figure import Figure  # not pyplot: it would look for a display

        figure = Figure(figsize=(12, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color="0.7", lw=1, zorder=0)
        axes.set_xscale("log")
        axes.set(xlim=(0.85, 800), ylim=(LEAST, MOST))
        axes.set_xticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
        axes.minorticks_off()
        for method in self.rows:
            self._draw_method(axes, method)
        axes.set_xlabel("times fewer bytes up than FedAvg, mean over 12 tasks", size=12)
        axes.set_ylabel("accuracy minus FedAvg's,\npoints, 8 tasks", size=12)
        axes.text(0.02, 0.07, KEY, transform=axes.transAxes, size=12, color="0.25", linespacing=1.5)
        axes.tick_params(labelsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        return figure

    def _draw_method(self, axes: Axes, method: Method) -> None:
        ours, x, y, worst = method.ours, method.fewer, method.mean, method.worst
        colour, order = ("#0b6e4f", 3) if ours else ("#66707a", 2)

        def write(text: str, y: float, up: float, left: bool = False, size: int = 12) -> None:
            axes.annotate(
                text,
                (x, y),
                (-8 if left else 8, up),
                textcoords="offset points",
                ha="right" if left else "left",
                size=size,
                weight="bold" if ours else "normal",
                color=colour,
            )

        if y < LEAST:
            write(f"{method.label}: {y:.0f}, worst {worst:.0f} ↓", LEAST, 5)
            return
        axes.errorbar(
            x,
            y,
            method.half,
            marker="o",
            markersize=8,
            capsize=4,
            linewidth=2 if ours else 1,
            color=colour,
            zorder=order,
        )
        write(method.label, y, -16 if method.below else 6, method.left)
        if worst < LEAST:
            write(f"{worst:.0f} ↓", LEAST, 5, size=10)
        else:
            axes.plot(x, worst, marker="_", ms=12, mew=2, color=colour, zorder=order)


def first_picture(table: FilledBenchmarkTable) -> FirstPicture | None:
    """Return the picture that a table's definition describes; None before the benchmark ran.

    Raises `ResultsError` for a value that the benchmark lacks.
    """
    return FirstPicture(list(_methods(table))) if table.has_run() else None


def _methods(table: FilledBenchmarkTable) -> Iterator[Method]:
    first = table.definition.first
    assert first is not None
    keys = {row.id: row.key for row in table.definition.rows}
    for name, label in first.rows.items():
        wanted = (first.fewer, first.mean, first.half, first.worst)
        values = [_number(table, keys[name], key) for key in wanted]
        places = (name in chosen for chosen in (first.ours, first.left, first.below))
        yield Method(label, *places, *values)


def _number(table: FilledBenchmarkTable, row: str, column: str) -> float:
    found = table.measured.result
    for key in table.definition.path:
        key = {COLUMN: column, ROW: row}.get(key, key)
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, int | float):
        benchmark = table.definition.benchmark
        raise ResultsError(f"first: {benchmark}.json has no number for {row}, {column}")
    return float(found)
