"""Draws the runs of a sweep: one curve, with a band, for all runs that differ only in the seed.

`python -m edgewire.report.curves FOLDER... --y train_loss --x uplink_bytes --smooth 20 --out
curves.png`
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgewire.report.estimate import student
from edgewire.report.format import human_bytes, one_line, whole
from edgewire.report.reader import ResultsError, mistakes_are_lines
from edgewire.report.runs import Group, Row, group_runs, number, read_runs, sent_bytes, varying
from edgewire.report.style import LIGHT, PLAIN, STYLE, Ticks, look, name_ends, set_scale
from edgewire.report.summary import is_plain, trained
from edgewire.task.metric import ACCURACY, LOSS, Metric

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Values = NDArray[np.float64]
# the values of a run's rows, NaN where they are unknown; the runs' group may be needed for them
OfRows = Callable[[Sequence[Row], Any], Values]
Each = TypeVar("Each")
LINE = 150  # characters that fit in a line below the axes
NAMED = 12  # curves with their names at their ends; more have a legend
NAME = 40  # characters of a name


@dataclass(frozen=True)
class Axis:
    """An axis: its label, the values of a run's rows, the text of a tick, and its scale."""

    label: str
    of: OfRows
    ticks: Ticks = PLAIN
    log: bool = False


def column(key: str, scale: float = 1) -> OfRows:
    """Return the function that reads a key of each row, times `scale`."""
    return lambda rows, group: scale * _floats(number(row.get(key)) for row in rows)


def all_bytes(way: str) -> OfRows:
    """Return the function that reads all bytes sent until each row."""
    return lambda rows, group: _floats(sent_bytes(row, way) for row in rows)


def _floats(values: Iterable[float | None]) -> Values:
    return np.array([*values], dtype=np.float64)  # None becomes NaN


# what the x axis of `draw` can show
X = {
    "round": Axis("round", column("round")),
    "uplink_bytes": Axis("all bytes up", all_bytes("uplink"), human_bytes),
    "downlink_bytes": Axis("all bytes down", all_bytes("downlink"), human_bytes),
    "seconds": Axis("time (s)", column("seconds")),
    "virtual_seconds": Axis("time on the virtual network (s)", column("virtual_seconds")),
}


def y_axis(key: str, metric: Metric) -> Axis:
    """Return the axis for a key of the rows; a share is in %. `metric`: the main metric."""
    for known in (metric, ACCURACY, LOSS):
        if key == known.name:
            return Axis(known.axis, column(key, known.scale))
    return Axis("training loss" if key == "train_loss" else key, column(key))


@dataclass(frozen=True)
class Curve:
    """The curve of runs that differ in the seed: at every x their mean y, and a band around it."""

    x: Values
    mean: Values
    low: Values
    high: Values

    def add_to(self, axes: Axes, color: str, **line: Any) -> Line2D:
        """Draw the mean in its band; return its line. `line`: further options of `Axes.plot`."""
        (drawn,) = axes.plot(self.x, self.mean, color=color, **line)
        if (self.low < self.high).any():
            axes.fill_between(self.x, self.low, self.high, alpha=0.15, linewidth=0, color=color)
        return drawn


def mean_curve(
    histories: Iterable[Sequence[Row]],
    x: Axis,
    y: Axis,
    group: Any = None,
    smooth: int = 1,
    interval: bool = True,
) -> Curve | None:
    """Return the mean curve of runs; None if no round has x and y in all of them.

    `histories`: the rows of each run; `group`: as in `OfRows`. The curve has a point for each round
    in which every run has both, at the mean of the runs' x; on a logarithmic axis x must be above
    0. `smooth`: the number of points in a moving average of each run's y. `interval`: as in `band`.
    """
    runs = []
    for rows in histories:
        points = np.stack([of(rows, group) for of in (column("round"), x.of, y.of)], axis=1)
        known = points[~np.isnan(points).any(axis=1)]
        runs.append({place: values for place, *values in known.tolist()})
    rounds = sorted(set(runs[0]).intersection(*runs)) if runs else []
    if not rounds:
        return None
    table = np.array([[run[r] for r in rounds] for run in runs])
    across, up = table[:, :, 0].mean(axis=0), table[:, :, 1]
    if smooth > 1:
        up = np.array([moving_average(row, smooth) for row in up])
    shown = across > 0 if x.log else np.ones(len(across), dtype=bool)
    found = (part[shown] for part in (across, *band(up, interval)))
    return Curve(*found) if shown.any() else None


def band(runs: Values, interval: bool = True) -> tuple[Values, Values, Values]:
    """Return the mean of the rows of a table, with a row a run, and the ends of a band around it.

    `interval`: the band is the 95 % interval of the mean; for two runs, and without it, the range.
    """
    mean, low, high = runs.mean(axis=0), runs.min(axis=0), runs.max(axis=0)
    if interval and len(runs) > 2:
        half = student(len(runs) - 1) * runs.std(axis=0, ddof=1) / math.sqrt(len(runs))
        low, high = mean - half, mean + half
    return mean, low, high


def moving_average(values: Values, count: int) -> Values:
    """Return the centred moving average of `values`: at each index the mean of `count` values.

    Near both ends the window is smaller: a one-sided window would shift a falling curve there.
    """
    before, after, last = count // 2, (count - 1) // 2, len(values) - 1
    found = []
    # not a running sum: after one huge loss the later values would lose their precision
    for at in range(len(values)):
        room = min(at, last - at)
        found.append(values[at - min(before, room) : at + min(after, room) + 1].mean())
    return np.array(found)


def finish(axes: Axes, x: Axis, y: Axis) -> None:
    """Set the labels, the scales and the ticks of both axes."""
    axes.set(xlabel=x.label, ylabel=y.label)
    axes.margins(x=0.02)
    set_scale(axes, "x", x.ticks, x.log)
    set_scale(axes, "y", y.ticks, y.log)


def draw(
    groups: Sequence[Group],
    x: str,
    y: str,
    smooth: int = 1,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Return a figure with a curve for each group of runs that differ only in the seed.

    `x`, `y`: the keys of a row that the axes show; bytes are all bytes of the messages. `smooth`:
    as in `mean_curve`. `title`: "": what the runs train. `log_x`, `log_y`: whether an axis is
    logarithmic. Bands are 95 % intervals of the means; of two runs the range. A dashed line is at
    the last value of the group without compression, if there is one. Raises `ResultsError` if no
    group has a curve.
    """
    from matplotlib import rc_context

    metric = groups[0].metric
    across, up = replace(X[x], log=log_x), replace(y_axis(y, metric), log=log_y)
    found = [
        mean_curve((run.history() for run in group.runs), across, up, smooth=smooth)
        for group in groups
    ]
    if not any(found):
        raise ResultsError(f"no history holds {y} and {x}")
    with rc_context(STYLE):
        figure = shown_figure(figsize=(12, 7.5), layout="constrained")
        axes = figure.add_subplot()
        ends = []
        for place, (each, label) in enumerate(zip(found, legend(groups), strict=True)):
            if each is not None:
                name = one_line(label.removeprefix("algorithm="), NAME)
                each.add_to(axes, **look(place), label=name)
                ends.append((name, float(each.x[-1]), float(each.mean[-1])))
        note = f", mean of {smooth} rows" if smooth > 1 else ""
        finish(axes, across, replace(up, label=up.label + note))
        axes.set_title(title or _title(groups), loc="left", fontsize=12)
        plain = [each for each, group in zip(found, groups, strict=True) if is_plain(group.first)]
        if y == metric.name and len(groups) > 1 and len(plain) == 1 and plain[0] is not None:
            axes.axhline(plain[0].mean[-1], color=LIGHT["muted"], linewidth=1, dashes=(3, 3))
        if len(ends) > NAMED:
            columns = max(1, LINE // (max(len(name) for name, *_ in ends) + 8))
            figure.legend(loc="outside lower center", ncols=columns, frameon=False)
        elif len(groups) > 1:
            figure.draw_without_rendering()  # the layout gives the axes their height
            name_ends(axes, ends)
    return figure


def _title(groups: Sequence[Group]) -> str:
    """Return what is trained, as far as all groups have it in common; "" for stored runs."""
    runs = [run for group in groups for run in group.runs[:1] if run.result.get("dataset")]
    texts = [trained(run).split(" · ") for run in runs if run.folder]
    return " · ".join(part for part in next(iter(texts), []) if all(part in text for text in texts))


def shown_figure(**options: Any) -> Figure:
    """Return a figure that a notebook shows as a picture; `options`: those of `Figure`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    class ShownFigure(Figure):
        def savefig(self, *arguments: Any, **options: Any) -> None:
            with rc_context(STYLE):  # ticks are made when they are drawn
                super().savefig(*arguments, **options)

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=72)
            return content.getvalue()

    return ShownFigure(**options)


def legend(groups: Sequence[Group]) -> list[str]:
    """Return a label for each group: its overrides that differ between the groups."""
    keys, labels = varying(groups), []
    for group in groups:
        shown = [f"{key}={group.overrides[key]}" for key in keys if key in group.overrides]
        labels.append(one_line(", ".join(shown)) or "the presets")
    return labels


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figure that the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgewire.report.curves", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="sweep folders")
    parser.add_argument(
        "--y", default="train_loss", help="a column of history.jsonl; default: train_loss"
    )
    parser.add_argument("--x", choices=X, default="round", help="default: round")
    parser.add_argument("--log", action="store_true", help="a logarithmic y axis")
    parser.add_argument("--log-x", action="store_true", help="a logarithmic x axis")
    parser.add_argument("--smooth", type=whole, default=1, metavar="N", help="moving average")
    parser.add_argument("--out", type=_png, required=True, metavar="FILE.png")
    parser.add_argument("--title", default="")
    asked = parser.parse_args(arguments)
    groups = group_runs(read_runs(asked.folders)[0])
    figure = draw(groups, asked.x, asked.y, asked.smooth, asked.title, asked.log_x, asked.log)
    figure.savefig(asked.out, dpi=100)  # 12 inches: 1200 pixels
    return 0


def _png(text: str) -> Path:
    if not text.endswith(".png"):
        raise argparse.ArgumentTypeError(f"must end in .png: {text}")
    return Path(text)


def evenly(values: Sequence[Each], most: int) -> list[Each]:
    """Return at most `most` of the values, evenly chosen, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / max(most - 1, 1))] for at in range(most)]


def front(sent: Sequence[float], values: Sequence[float], *, higher: bool) -> list[int]:
    """Return the points that no other beats, by rising bytes: fewer bytes and no worse value."""
    known = [i for i, value in enumerate(values) if not math.isnan(value)]
    order = sorted(known, key=lambda i: (sent[i], -values[i] if higher else values[i]))
    found: list[int] = []
    for i in order:
        gain = values[i] - values[found[-1]] if found else math.inf
        if (gain if higher or not found else -gain) > 0:
            found.append(i)
    return found


if __name__ == "__main__":
    sys.exit(main())
