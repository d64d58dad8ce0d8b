"""Shows which node holds which layers of a cut model, as a table and as a picture (SVG).

The layers of a cut model are divided into segments, one on each node.

`python -m edgewire.pipeline.picture RUN_FOLDER` draws the picture of a run, also if `flwr run`
started it.
"""

import sys
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgewire.report.format import human_bytes
from edgewire.report.runs import RESULT, read_result

PICTURE = "segments.svg"
BOX, GAP, TOP, LINE, MARGIN = 230, 40, 118, 18, 20  # pixels
BAR = 12  # characters of a bar on the terminal


def segments_table(result: dict[str, Any]) -> Table:
    """Return a table with a row for each segment: node, layers, parameters, work and bytes."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("node", "layers", "parameters", "of a step", "", "received", "sent"):
        table.add_column(
            name, justify="right" if name in ("parameters", "received", "sent") else "left"
        )
    most = max(segment["share"] for segment in result["segments"])
    for number, segment in enumerate(result["segments"]):
        table.add_row(
            str(number),
            "\n".join(_layers(segment)),
            f"{segment['parameters']:,}",
            "█" * max(round(BAR * segment["share"] / most), 1),
            f"{segment['share']:.2f}",
            human_bytes(result["downlink_bytes_by_segment"][number]),
            human_bytes(result["uplink_bytes_by_segment"][number]),
        )
    return table


def _layers(segment: dict[str, Any]) -> list[str]:
    first = segment["first"]
    return [f"{first + i} {name}" for i, name in enumerate(segment["layers"])]


def picture(result: dict[str, Any]) -> str:
    """Return an SVG: the server with its store, and below it the nodes with their segments."""
    segments = result["segments"]
    tall = max(len(segment["layers"]) for segment in segments)
    height = TOP + 96 + LINE * (tall + 5) + MARGIN
    width = 2 * MARGIN + len(segments) * (BOX + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(MARGIN, 28, f"{result['model']}, {result['algorithm']}", "bold"),
        f'<rect x="{MARGIN}" y="44" width="{width - 2 * MARGIN}" height="{TOP - 64}" rx="6" '
        'fill="#eef2f7" stroke="#8aa0b8"/>',
        _text(MARGIN + 12, 76, "server: activation store, schedule, copies of the segments"),
    ]
    for number, segment in enumerate(segments):
        parts += _box(result, number, segment, MARGIN + number * (BOX + GAP), tall)
    return "\n".join([*parts, "</svg>", ""])


def _box(
    result: dict[str, Any], number: int, segment: dict[str, Any], x: int, tall: int
) -> list[str]:
    """Return a node's box, and the two arrows between it and the server."""
    top, down, up = TOP + 76, x + 40, x + BOX - 90
    received = result["downlink_bytes_by_segment"][number]
    sent = result["uplink_bytes_by_segment"][number]
    parts = [
        _arrow(down, TOP - 20, down, top),
        _arrow(up, top, up, TOP - 20),
        _text(down + 6, TOP + 34, human_bytes(received)),
        _text(up + 6, TOP + 34, human_bytes(sent)),
        f'<rect x="{x}" y="{top}" width="{BOX}" height="{LINE * (tall + 5)}" rx="6" '
        'fill="#fbf7ee" stroke="#b89b5e"/>',
        _text(x + 12, top + 24, f"node {number}", "bold"),
    ]
    y = top + 24
    for line in _layers(segment):
        y += LINE
        parts.append(_text(x + 12, y, line))
    share = segment["share"]
    module = segment["module_share"]
    parts.append(
        _text(x + 12, y + LINE + 6, f"{segment['parameters']:,} parameters", colour="#555")
    )
    said = [f"{share:.2f} of an uncut step"] + [f"{module:.2f} of it its module"] * (module > 0)
    for number, line in enumerate(said, 2):
        parts.append(_text(x + 12, y + number * LINE + 6, line, colour="#555"))
    return parts


def _text(x: int, y: int, text: str, weight: str = "normal", colour: str = "#111") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#555" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def show(folder: Path, result: dict[str, Any], console: Console) -> None:
    """Print the segments' table and write the picture; do nothing for a run without segments."""
    if result.get("segments"):
        (folder / PICTURE).write_text(picture(result))
        console.print(segments_table(result))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m edgewire.pipeline.picture RUN_FOLDER")
    try:
        found = read_result(Path(sys.argv[1]))
        if not found.get("segments"):
            sys.exit(f"{sys.argv[1]}: the run's model was not cut")
        show(Path(sys.argv[1]), found, Console(highlight=False))
    except FileNotFoundError:
        sys.exit(f"{sys.argv[1]}: no result.json there")
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        sys.exit(f"{sys.argv[1]}: {RESULT} cannot be used: {error!r}")
