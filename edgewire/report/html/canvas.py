"""The look of a report's pictures, and their SVG inside a page that may be light or dark.

Pictures are drawn with the light colours. In the page each of these colours is a CSS variable, so
the page's theme decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import catch_warnings, filterwarnings

from edgewire.report.html.run_data import ReportGroup
from edgewire.report.reader import file_name
from edgewire.report.style import HUES, LIGHT

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 440, 300  # points of a picture without its legend
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 12, 44  # points around the axes
LEGEND_LINE, LEGEND_CHARACTERS = 15, 60  # height of a line of the legend; its longest text
ROW = 38  # height of a group in pictures with a row for each group

VARIABLES = {light: f"var(--{name})" for name, light in LIGHT.items()}


class LegendEntry(NamedTuple):
    """A line of a legend.

    `colour`: a name of `THEME`. `dashed`: whether its line is dashed, because the colour is used
    twice. `box`: whether it is a filled box, no line.
    """

    text: str
    colour: str
    dashed: bool = False
    box: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """The colour and the style of a line, as options of `Axes.plot`."""
        return {"color": LIGHT[self.colour], "linestyle": "--" if self.dashed else "-"}


def mark_of(group: ReportGroup) -> LegendEntry:
    """Return how pictures show a group: in grey, or with its number, colour and line."""
    if (rank := group.rank) is None:
        return LegendEntry(group.label, "other")
    return LegendEntry(f"{group.key}  {group.label}", f"group{rank % HUES}", rank >= HUES)


class Canvas:
    """A picture that is being drawn: `axes`, and below them a legend that only the files show.

    `name`: names its files (`file_name`). `height`: points without the legend. `legend`: the
    entries of the legend; `fills`: those of fills, as the legend of groups is on the page once.
    `svg`: the picture for a page, when it is saved.
    """

    def __init__(
        self,
        name: str,
        title: str,
        note: str = "",
        legend: Sequence[LegendEntry] = (),
        height: float = HEIGHT,
        left: float = LEFT,
    ) -> None:
        from matplotlib.figure import Figure  # not pyplot: it would look for a display
        from matplotlib.lines import Line2D

        self.name, self.title, self.note = file_name(name), title, note
        self._height = height
        self.fills = [entry for entry in legend if entry.box]
        self.svg = ""
        whole = height + LEGEND_LINE * len(legend) + (6 if legend else 0)
        self._figure = Figure(figsize=(WIDTH / 72, whole / 72), facecolor=LIGHT["surface"])
        bottom = whole - height + BOTTOM
        width, high = (WIDTH - left - RIGHT) / WIDTH, (height - TOP - BOTTOM) / whole
        self.axes: Axes = self._figure.add_axes((left / WIDTH, bottom / whole, width, high))
        lines = [
            Line2D(
                [], [], label=entry.text[:LEGEND_CHARACTERS], linewidth=8 if entry.box else 1.5,
                **entry.line,
            )
            for entry in legend
        ]  # fmt: skip
        self._figure.legend(
            handles=lines, loc="lower left", bbox_to_anchor=(LEFT / WIDTH, 0), frameon=False,
            fontsize=10, borderpad=0.2, borderaxespad=0.4, handlelength=2.2, labelspacing=0.5,
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write NAME.svg into a folder."""
        out = StringIO()
        with catch_warnings():
            # a name in another script: matplotlib lacks its letters, browsers have them
            filterwarnings("ignore", "Glyph", UserWarning)
            about = {"Date": None, "Title": self.title}
            self._figure.savefig(out, format="svg", metadata=about)
        svg = out.getvalue()
        (folder / f"{self.name}.svg").write_text(svg, encoding="utf-8")
        self.svg = inline(svg, self.name, self.title, self._height)


def row_canvas(
    labels: Sequence[str], name: str, title: str, note: str = "", legend: Sequence[LegendEntry] = ()
) -> Canvas:
    """Return a canvas with a row for each label, which stands above it, in place of a y axis."""
    canvas = Canvas(name, title, note, legend, 58 + ROW * len(labels), left=14)
    axes = canvas.axes
    for place, label in enumerate(labels):
        axes.text(0, place - 0.3, label, fontsize=10.5, va="bottom",
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set(ylim=(len(labels) - 0.6, -0.85), yticks=[])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return canvas


def inline(svg: str, name: str, title: str, height: float) -> str:
    """Return an SVG for a page: without its legend, and with the page's colours and font.

    `name`: makes the ids of several pictures in a page different. `height`: of the picture without
    its legend, in points.
    """
    body = svg[svg.index("<svg") :]
    for part in ("metadata", "style", "title"):
        body = re.sub(rf"<{part}[^>]*>.*?</{part}>\s*", "", body, count=1, flags=re.DOTALL)
    # the legend is drawn last
    body = re.sub(r' *<g id="legend_1">.*(?=\n </g>)', "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]+>", lambda found: _inline_tag(found[0], name), body)
    head = (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}" '
        'xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return re.sub(r"<svg[^>]*>", lambda found: head, body, count=1).strip()


def _inline_tag(tag: str, name: str) -> str:
    """Return a tag for a page. The text between tags stays as it is, whatever it looks like."""
    tag = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"; font-family: [^;\"]*", "", tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), tag)
