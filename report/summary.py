"""The short table at the end of a run, from its `result.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from report.format import human_bytes, human_seconds, percent


def read_result(folder: Path) -> dict[str, Any]:
    """Return a run's result. Raises `FileNotFoundError` if the run has not ended well."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def summary_table(result: dict[str, Any], folder: Path) -> Table:
    """Return a table of what was reached, what crossed the network, and how long it took."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    up, down = result["uplink_bytes"], result["downlink_bytes"]
    updates = max(result["client_updates"], 1)
    unit = "pushes" if "staleness" in result else "rounds"
    rows = {
        "run": f"{result['algorithm']}, {result['model']} on {result['dataset']}, "
        f"{result['rounds']} {unit}, seed {result['seed']}",
        "accuracy": f"{percent(result['accuracy'])} (best {percent(result['best_accuracy'])})",
        "uplink": f"{human_bytes(up)}, {human_bytes(up / updates)} an update, "
        f"{result['uplink_ratio']:.2f} times smaller than float32",
        "downlink": f"{human_bytes(down)}, {result['downlink_ratio']:.2f} times smaller",
        "updates": f"{result['client_updates']} used, {result['failures']} failed",
        "time": f"{human_seconds(result['seconds'])}"
        + (
            f"; {human_seconds(result['virtual_seconds'])} on the virtual network"
            if result["virtual_seconds"] is not None
            else ""
        ),
        "files": str(folder),
    }
    for name, value in rows.items():
        table.add_row(name, value, style="bold" if name == "accuracy" else None)
    return table
