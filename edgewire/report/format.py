"""Formats numbers and text for people; parses numbers from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

NOTHING = "-"  # stands for a missing value
LONGEST = 160  # characters of a text from a file


def human_bytes(count: float) -> str:
    """Return bytes with a decimal unit: 61706 -> '61.7 kB'."""
    for unit in ("B", "kB", "MB", "GB"):
        shown = float(f"{count:.0f}" if unit == "B" else f"{count:.3g}")  # 999.7 kB is 1 MB
        if abs(shown) < 1000:
            return f"{shown:.0f} {unit}" if unit == "B" else f"{shown:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def human_seconds(seconds: float | None) -> str:
    """Return seconds as '12.3 s', '4 min 05 s' or '2 h 03 min'."""
    if seconds is None:
        return NOTHING
    if float(f"{seconds:.3g}") < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def whole(text: str) -> int:
    """Return an integer of at least 1; a `type` for `argparse`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a Markdown table. The last `numbers` columns are aligned to the right."""
    aligned = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    # an unescaped bar inside a value would end its cell
    cells = ([cell.replace("|", r"\|") for cell in line] for line in (heads, aligned, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of printable characters; a longer text ends with an ellipsis.

    Characters that change the direction of text, and control characters, become spaces: neither
    a terminal nor an SVG file may hold them.
    """
    text = text[: 100 * longest]  # a text may have megabytes
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
