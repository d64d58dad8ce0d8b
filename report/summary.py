"""The short table at the end of a run, from its `result.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from report.format import human_bytes, human_seconds, percent
from report.overrides import name_of


def read_result(folder: Path) -> dict[str, Any]:
    """Return a run's result. Raises `FileNotFoundError` if the run has left none."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def summary_table(result: dict[str, Any], folder: Path) -> Table:
    """Return a table of the accuracy, the bytes on the network, and the time."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    unit = "pushes" if "staleness" in result else "rounds"
    each = human_bytes(result["uplink_bytes"] / max(result["client_updates"], 1))
    here = Path.cwd()
    rows = {
        "run": name_of(result, folder),
        "task": f"{result['model']} on {result['dataset']}, {result['nodes']} devices, "
        f"{result['rounds']} {unit}, seed {result['seed']}",
        "accuracy": f"{percent(result['accuracy'])} (best {percent(result['best_accuracy'])})",
        "sent up": _beside_flower(result, "uplink"),
        "sent down": _beside_flower(result, "downlink"),
        "on a link": _on_a_link(result),
        "updates": f"{result['client_updates']} used, {result['failures']} failed; "
        f"a payload of {each} each",
        "took": _took(result),
        "files": str(folder.relative_to(here) if folder.is_relative_to(here) else folder),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value, style="bold" if name == "accuracy" else None)
    return table


def whole_bytes(result: dict[str, Any], way: str) -> tuple[float, float]:
    """Return a run's bytes in a direction, and the bytes if Flower had sent them uncompressed.

    `way`: "uplink" or "downlink". Both numbers include everything in the messages.
    In results of earlier versions both numbers count payloads only.
    """
    other, note = (result.get(f"{way}_{what}_bytes") or 0 for what in ("other", "note"))
    return result[f"{way}_bytes"] + other + note, result[f"{way}_bytes_float32"] + other


def _beside_flower(result: dict[str, Any], way: str) -> str:
    sent, plain = whole_bytes(result, way)
    return (
        f"{human_bytes(sent)}; Flower would have sent {human_bytes(plain)}, "
        f"{result[f'{way}_ratio']:.2f} times as much"
    )


def _on_a_link(result: dict[str, Any]) -> str:
    """Return the text that tells how long the run's messages take over a link; "" if unknown."""
    if result.get("link_seconds") is None:
        return ""
    down, up = (_mbps(result[f"line_{way}_mbps"]) for way in ("down", "up"))
    text = (
        f"{human_seconds(result['link_seconds'])} at {down} down, {up} up; "
        f"{human_seconds(result['link_seconds_float32'])} without compression"
    )
    own = result["virtual_seconds"]
    if own and own < 0.999 * result["link_seconds"]:  # the run's network has no bandwidth limit
        text += f"\n({human_seconds(own)} of each are the devices' own work)"
    return text


def _took(result: dict[str, Any]) -> str:
    """Return the text that tells the wall time, and the virtual time unless it is shown already."""
    text = f"{human_seconds(result['seconds'])} here"
    if result["virtual_seconds"] is None or result.get("link_seconds") is not None:
        return text
    return f"{text}; {human_seconds(result['virtual_seconds'])} on the virtual network"


def _mbps(rate: float | None) -> str:
    return "no limit" if rate is None else f"{rate:g} Mbit/s"
