"""Accuracy against bytes in each direction: a table's rows as points with their intervals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from report.estimate import estimate
from report.page import FilledTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = {"uplink_bytes": "sent by the nodes (MB)", "downlink_bytes": "sent by the server (MB)"}
MARKERS = "osD^v<>Pp*"  # with ten colours, which go round at another pace: a hundred looks
LINE = 120  # characters that fit side by side below the axes


@dataclass(frozen=True)
class Point:
    """A row: its name, its accuracy in % with half of the interval, its bytes each way."""

    label: str
    accuracy: float
    half: float | None
    sent: tuple[float, ...]


def points(table: FilledTable) -> list[Point]:
    """Return the rows that have run and were evaluated, in the table's order."""
    return list(_points(table))


def _points(table: FilledTable) -> Iterator[Point]:
    for row in table.definition.rows:
        runs = table.runs_of(row)
        accuracies = [run.numbers["accuracy"] for run in runs]
        present = [100 * accuracy for accuracy in accuracies if accuracy is not None]
        if not present:
            continue
        found = estimate(present)
        sent = tuple(fmean(run.numbers[way] or 0.0 for run in runs) for way in WAYS)
        yield Point(row.label.replace("`", ""), found.mean, found.half, sent)


def digest(found: list[Point]) -> str:
    """Return what a picture's file is marked with: another one for other points."""
    content = [[p.label, p.accuracy, p.half, *p.sent] for p in found]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def is_of(file: Path, found: list[Point]) -> bool:
    """Whether a file is there and shows these points."""
    return file.is_file() and digest(found).encode() in file.read_bytes()


def save(file: Path, found: list[Point]) -> None:
    """Write the picture of one point or more, marked with their digest."""
    figure = draw(found)
    figure.savefig(file, dpi=100, metadata={"Description": digest(found), "Software": None})


def draw(found: list[Point]) -> Figure:
    """Return a figure with a panel for each direction. Raises `ModuleNotFoundError`."""
    from matplotlib.figure import Figure  # no pyplot: it would look for a screen
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(12, 6.5), layout="constrained")
    panels = figure.subplots(1, len(WAYS), sharey=True)
    for number, (axes, label) in enumerate(zip(panels, WAYS.values(), strict=True)):
        _draw_panel(axes, found, number)
        axes.set(xlabel=label, xscale="log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy (%)")
    columns = max(1, LINE // (max(len(point.label) for point in found) + 8))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _draw_panel(axes: Axes, found: list[Point], way: int) -> None:
    for number, point in enumerate(found):
        axes.errorbar(
            point.sent[way] / 1e6,
            point.accuracy,
            yerr=point.half,
            label=point.label,
            color=f"C{number % 10}",
            marker=MARKERS[(number + number // 10) % len(MARKERS)],
            linestyle="none",
            capsize=3,
        )
