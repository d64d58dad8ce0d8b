"""The look of all pictures: the palette of a report's page, and how axes and curves are labelled.

Pictures are drawn with the colours of a light page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes

Ticks = Callable[[float], str]
PLAIN: Ticks = "{:,.6g}".format
LINE = 12  # points: the height of a label at a curve's end
CSS = (Path(__file__).parent / "html" / "report.css").read_text(encoding="utf-8")
# CSS variable -> the colour on a light page and on a dark page
THEME = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\);", CSS)
}
LIGHT = {name: light for name, (light, dark) in THEME.items()}
HUES = 6  # colours of curves; the next six curves have dashed lines
STYLES = ("-", "--", ":", "-.")
STYLE: Any = {  # settings of matplotlib
    "font.size": 11.5,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.edgecolor": LIGHT["rule"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.7,
    "xtick.color": LIGHT["rule"],
    "ytick.color": LIGHT["rule"],
    "xtick.labelcolor": LIGHT["muted"],
    "ytick.labelcolor": LIGHT["muted"],
    "ytick.major.size": 0,
    "svg.hashsalt": "report",
}


def look(number: int) -> dict[str, Any]:
    """Return the colour and the style of a figure's line: six colours, then the next style."""
    style = STYLES[number // HUES % len(STYLES)]
    return {"color": LIGHT[f"group{number % HUES}"], "linestyle": style}


def set_scale(axes: Axes, which: Literal["x", "y"], ticks: Ticks, log: bool = False) -> None:
    """Set the scale of one axis, and the texts of its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    drawn = axes.xaxis if which == "x" else axes.yaxis
    if log and isfinite(drawn.get_minpos()):  # a value is above 0
        axes.set(**{f"{which}scale": "log"})
        low, high = drawn.get_view_interval()
        near = high < 100 * low
        drawn.set_major_locator(LogLocator(subs=(1, 2, 5) if near else (1,), numticks=7))
        drawn.set_minor_locator(NullLocator())
    elif which == "x":
        axes.locator_params(axis="x", nbins=6, steps=(1, 2, 5, 10))
    # the default writes powers in the notation of TeX
    drawn.set_major_formatter(FuncFormatter(lambda value, place: ticks(value)))


def name_ends(axes: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Write the names of curves at their ends, so that none covers another.

    `ends`: for each curve its name, and x and y of its end.
    """
    low, high = axes.get_ylim()
    scale = 72 / axes.figure.dpi  # points of a pixel
    found = []
    for key, x, end in ends:
        if not isnan(end):
            y = min(max(end, low), high)
            found.append((float(axes.transData.transform((x, y))[1]) * scale, key, x, y))
    found.sort()
    top = float(axes.transAxes.transform((0, 1))[1]) * scale
    places = _apart([height for height, *_ in found], LINE, top)
    for place, (height, key, x, y) in zip(places, found, strict=True):
        axes.annotate(
            key, (x, y), (5, place - height - 3), textcoords="offset points", fontsize=10,
            annotation_clip=False,
        )  # fmt: skip


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
