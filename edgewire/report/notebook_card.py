"""A run in a notebook: a card with what is trained, the curve, and the answers.

It has the colours of the notebook, so it suits light and dark ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite

from edgewire.report.style import LIGHT
from edgewire.task.metric import Metric

LEFT, RIGHT, TOP, BOTTOM = 66, 392, 10, 86  # of the curve in its picture, 400 x 108
MUTED = "opacity:.65"


def curve_svg(points: Sequence[tuple[float, float]], metric: Metric) -> str:
    """Return a picture of a metric's values by rounds; "" with fewer than two finite points."""
    known = [point for point in points if isfinite(point[1])]
    if len(known) < 2 or known[0][0] >= known[-1][0]:
        return ""
    first, last = known[0][0], known[-1][0]
    low, high = min(y for _, y in known), max(y for _, y in known)
    across, up = (RIGHT - LEFT) / (last - first), (BOTTOM - TOP) / ((high - low) or 1.0)
    places = " ".join(
        f"{LEFT + (x - first) * across:.1f},{BOTTOM - (y - low) * up:.1f}" for x, y in known
    )
    texts = (
        (LEFT - 8, TOP + 4, "end", metric.text(high)),
        (LEFT - 8, BOTTOM + 4, "end", metric.text(low)),
        (LEFT, BOTTOM + 18, "start", f"round {first:g}"),
        (RIGHT, BOTTOM + 18, "end", f"{last:g}"),
    )
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" style="{MUTED}">{text}</text>'
        for x, y, anchor, text in texts
    )
    rules = "".join(
        f'<path d="M{LEFT} {y}H{RIGHT}" stroke="currentColor" stroke-opacity=".2"/>'
        for y in (TOP, BOTTOM)
    )
    return (
        f'<svg viewBox="0 0 400 108" width="400" style="max-width:100%" role="img" '
        f'aria-label="{escape(metric.name)} by rounds" font-size="11" fill="currentColor">{rules}'
        f'<polyline points="{places}" fill="none" stroke="{LIGHT["group0"]}" stroke-width="2" '
        f'stroke-linejoin="round"/>{labels}</svg>'
    )


def card(title: str, curve: str = "", rows: Mapping[str, str] | None = None, end: str = "") -> str:
    """Return a card as HTML: the title, the curve, the rows by their names, and HTML at the end."""
    cells = "".join(
        f'<div style="{MUTED}">{escape(name)}</div><div>{escape(text)}</div>'
        for name, text in (rows or {}).items()
    )
    grid = "display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 12px"
    table = f'<div style="{grid}">{cells}</div>' if cells else ""
    return (
        '<div style="max-width:46em;line-height:1.45;overflow-wrap:anywhere">'
        f"<div><b>{escape(title)}</b></div>{curve}{table}{end}</div>"
    )
