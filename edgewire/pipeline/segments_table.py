"""Shows which node holds which layers of a cut model, as a table.

The layers of a cut model are divided into segments, one on each node.
"""

from typing import Any

from rich.table import Table

from edgewire.report.format import human_bytes

BAR = 12  # characters of a bar


def segments_table(result: dict[str, Any]) -> Table:
    """Return a table with a row for each segment: node, layers, parameters, work and bytes."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("node", "layers", "parameters", "of a step", "", "received", "sent"):
        table.add_column(
            name, justify="right" if name in ("parameters", "received", "sent") else "left"
        )
    most = max(segment["share"] for segment in result["segments"])
    for number, segment in enumerate(result["segments"]):
        layers = enumerate(segment["layers"], segment["first"])
        table.add_row(
            str(number),
            "\n".join(f"{layer} {name}" for layer, name in layers),
            f"{segment['parameters']:,}",
            "█" * max(round(BAR * segment["share"] / most), 1),
            f"{segment['share']:.2f}",
            human_bytes(result["downlink_bytes_by_segment"][number]),
            human_bytes(result["uplink_bytes_by_segment"][number]),
        )
    return table
