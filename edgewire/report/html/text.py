"""Makes text from files safe to show: one line of printable characters, not too long."""

from __future__ import annotations

LONGEST = 160  # characters


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of printable characters; a longer text ends with an ellipsis.

    Characters that change the direction of text, and control characters, become spaces: neither
    a terminal nor an SVG file may hold them.
    """
    text = text[: 100 * longest]  # a text may have megabytes
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
