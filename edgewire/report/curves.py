"""Draws the runs of a sweep: one curve, with a band, for all runs that differ only in the seed.

`python -m edgewire.report.curves FOLDER... --y train_loss --x uplink_bytes --smooth 20 --out
curves.png`
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgewire.report.estimate import student
from edgewire.report.format import human_bytes, one_line, whole
from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.reader import ResultsError, mistakes_are_lines
from edgewire.report.runs import (
    Group,
    Run,
    group_runs,
    main_metric,
    read_runs,
    sent_bytes,
    varying,
    whole_bytes,
)
from edgewire.report.style import LIGHT, PLAIN, STYLE, Ticks, look, name_ends, set_scale
from edgewire.report.summary import BESIDE, trained

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Values = NDArray[np.float64]
Each = TypeVar("Each")
# column of history.jsonl -> label of the axis, and the column's value that is one unit on it
X = {
    "round": ("round", 1.0),
    "uplink_bytes": ("all bytes up", 1e6),
    "downlink_bytes": ("all bytes down", 1e6),
    "seconds": ("time (s)", 1.0),
    "virtual_seconds": ("time on the virtual network (s)", 1.0),
}
Y = {
    "train_loss": ("training loss", 1.0),
    "accuracy": ("test accuracy (%)", 0.01),
    "loss": ("test loss", 1.0),
}
LINE = 150  # characters that fit in a line below the axes
NAMED = 12  # curves with their names at their ends; more have a legend
NAME = 40  # characters of a name


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
    seeds: Iterable[Iterable[Sequence[Any]]],
    smooth: int = 1,
    log_x: bool = False,
    units: tuple[float, float] = (1.0, 1.0),
    interval: bool = True,
) -> Curve | None:
    """Return the mean curve of runs; None if no round has x and y in all of them.

    `seeds`: of each run the round, x and y of its rows. The curve has a point for each round in
    which every run has both, at the mean of the runs' x. `smooth`: the number of points in a moving
    average of each run's y. `interval`: whether the band is the 95 % interval of the mean; for two
    runs, and without it, the band is their range. `log_x`: leave out points at 0 or below. `units`:
    the values of x and y that are one unit in the curve.
    """
    runs = [{r: (x, y) for r, x, y in rows if None not in (r, x, y)} for rows in seeds]
    rounds = sorted(set(runs[0]).intersection(*runs)) if runs else []
    if not rounds:
        return None
    table = np.array([[run[r] for r in rounds] for run in runs], dtype=np.float64)
    across, raw = table[:, :, 0].mean(axis=0) / units[0], table[:, :, 1] / units[1]
    up = raw if smooth == 1 else np.array([moving_average(row, smooth) for row in raw])
    mean, low, high = up.mean(axis=0), up.min(axis=0), up.max(axis=0)
    if interval and len(up) > 2:
        half = student(len(up) - 1) * up.std(axis=0, ddof=1) / math.sqrt(len(up))
        low, high = mean - half, mean + half
    shown = across > 0 if log_x else np.ones(len(across), dtype=bool)
    return Curve(*(part[shown] for part in (across, mean, low, high))) if shown.any() else None


def axis_of(y: str, metric: MainMetric = ACCURACY) -> tuple[str, float]:
    """Return the label of the y axis, and the column's value that is one unit on it.

    `metric`: the main metric, which may be a share.
    """
    return Y.get(y, (metric.axis, 1 / metric.scale) if y == metric.name else (y, 1.0))


def units_of(x: str, y: str, metric: MainMetric) -> tuple[float, float]:
    """Return the values of two columns that are one unit on their axes."""
    return X[x][1], axis_of(y, metric)[1]


def moving_average(values: Values, count: int) -> Values:
    """Return the centred moving average of `values`: at each index the mean of `count` values.

    Near both ends the window is smaller: a one-sided window would shift a falling curve there.
    """
    # not a running sum: after one huge loss the later values would lose their precision
    return np.array([values[window(at, len(values), count)].mean() for at in range(len(values))])


def window(at: int, size: int, count: int) -> slice:
    """Return the slice of `count` values around index `at` in a list of `size` values.

    Near both ends of the list the slice has fewer values.
    """
    room = min(at, size - 1 - at)
    return slice(at - min(count // 2, room), at + min((count - 1) // 2, room) + 1)


def draw(
    groups: Sequence[Group],
    x: str,
    y: str,
    smooth: int = 1,
    title: str = "",
    log_x: bool = False,
) -> Figure:
    """Return a figure with a curve for each group of runs that differ only in the seed.

    `x`, `y`: the keys of a row that the axes show; bytes are all bytes of the messages. `smooth`,
    `log_x`: as in `mean_curve`. `title`: "": what the runs train. Bands are 95 % intervals of the
    means; of two runs the range. A dashed line is at the last value of the group without
    compression, if there is one. Raises `ResultsError` if no group has a curve.
    """
    from matplotlib import rc_context

    metric = main_metric(run for group in groups for run in group.runs)
    found = [
        mean_curve(
            [_points(run, x, y) for run in group.runs], smooth, log_x, units_of(x, y, metric)
        )
        for group in groups
    ]
    if not any(found):
        raise ResultsError(f"no history holds {y} and {x}")
    with rc_context(STYLE):
        figure = shown_figure(figsize=(12, 7.5), layout="constrained")
        axes = figure.add_subplot()
        ends = []
        for number, (each, label) in enumerate(zip(found, legend(groups), strict=True)):
            if each is not None:
                name = one_line(label.removeprefix("algorithm="), NAME)
                each.add_to(axes, **look(number), label=name)
                ends.append((name, float(each.x[-1]), float(each.mean[-1])))
        note = f", mean of {smooth} rows" if smooth > 1 else ""
        label, unit = X[x]
        axes.set(xlabel=label, ylabel=axis_of(y, metric)[0] + note)
        axes.set_title(title or _title(groups), loc="left", fontsize=12)
        axes.margins(x=0.01)
        ticks: Ticks = (lambda value: human_bytes(value * unit)) if "bytes" in x else PLAIN
        set_scale(axes, "x", ticks, log_x)
        plain = [each for each, group in zip(found, groups, strict=True) if is_plain(group)]
        if y == metric.name and len(groups) > 1 and len(plain) == 1 and plain[0] is not None:
            axes.axhline(plain[0].mean[-1], color=LIGHT["muted"], linewidth=1, dashes=(3, 3))
        if len(ends) > NAMED:
            columns = max(1, LINE // (max(len(name) for name, *_ in ends) + 8))
            figure.legend(loc="outside lower center", ncols=columns, frameon=False)
        elif len(groups) > 1:
            figure.draw_without_rendering()  # the layout gives the axes their height
            name_ends(axes, ends)
    return figure


def _points(run: Run, x: str, y: str) -> Iterator[list[Any]]:
    """Yield the round, x and y of each row of a run; bytes are those of whole messages."""
    way = x.removesuffix("_bytes")
    for row in run.history():
        yield [row.get("round"), row.get(x) if way == x else sent_bytes(row, way), row.get(y)]


def _title(groups: Sequence[Group]) -> str:
    """Return what is trained, as far as all groups have it in common; "" for stored runs."""
    runs = [run for group in groups for run in group.runs[:1] if run.result.get("dataset")]
    texts = [trained(run.result, run.folder).split(" · ") for run in runs if run.folder]
    return " · ".join(part for part in next(iter(texts), []) if all(part in text for text in texts))


def is_plain(group: Group) -> bool:
    """Return whether the runs of a group were not compressed in either direction."""
    sizes = [whole_bytes(group.runs[0].result, way) for way in ("uplink", "downlink")]
    return all(abs(plain - sent) <= BESIDE * sent for sent, plain in sizes)


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
    figure = draw(groups, asked.x, asked.y, asked.smooth, asked.title, asked.log_x)
    figure.axes[0].set_yscale("log" if asked.log else "linear")
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
