"""Draws pictures of tables. Each file holds a digest of its data, so a change is noticed."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewire.task.metric import ACCURACY, Metric

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEGABYTE = 1e6
COLOURS = 64  # of a file, a third of the bytes of one with all colours
LINE = 120  # characters that fit in a line below the axes


@dataclass(frozen=True)
class Picture(ABC):
    """A picture of a table.

    `rows`: one dataclass with a `label` for each row that has runs. `metric`: the main metric.
    """

    rows: Sequence[Any]
    metric: Metric = ACCURACY

    @property
    def digest(self) -> str:
        """The digest of the picture's data. `save` writes it into the file."""
        axis = [] if self.metric == ACCURACY else [self.metric.axis]
        content = json.dumps([type(self).__name__, *axis, *map(asdict, self.rows)], default=list)
        # the last bits of a number depend on the release of scipy
        rounded = json.loads(content, parse_float=_rounded, parse_int=_rounded)
        return hashlib.sha256(json.dumps(rounded).encode()).hexdigest()

    def is_in(self, file: Path) -> bool:
        """Return whether a file exists and holds this digest."""
        return file.is_file() and self.digest.encode() in file.read_bytes()

    def save(self, file: Path) -> None:
        """Write the file, in `COLOURS` colours, with its digest.

        Raises `ModuleNotFoundError` without matplotlib.
        """
        figure, drawn = self.draw(), BytesIO()
        figure.savefig(drawn, dpi=100)
        from PIL import Image, PngImagePlugin  # matplotlib requires it

        about = PngImagePlugin.PngInfo()
        about.add_text("Description", self.digest)
        few = Image.open(drawn).convert("RGB").quantize(COLOURS)
        few.save(file, optimize=True, pnginfo=about)

    @abstractmethod
    def draw(self) -> Figure:
        """Return a figure of `rows`, of which there must be at least one.

        Raises `ModuleNotFoundError` without matplotlib.
        """


def _rounded(number: str) -> str:
    return f"{float(number):.9g}"


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` axes side by side that share their y axis."""
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    figure = Figure(figsize=(12, 6.5), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True))


def logarithmic(axes: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers that do not overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    least, most = axes.get_xlim()
    wide = most > 1000 * least
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def add_legend(figure: Figure, axes: Axes) -> None:
    """Add a legend below the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, LINE // (max(map(len, labels)) + 8))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
