"""The short table at the end of a run, from its `result.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from edgewire.report.files.reader import read_yaml
from edgewire.report.format import human_bytes, human_seconds
from edgewire.report.metric import main_of
from edgewire.report.runs import HYDRA, read_overrides, whole_bytes

# groups that a preset sets: the run's name states other choices in these groups
METHOD = (
    *("strategy", "strategy/optimizer", "strategy/staleness"),
    *("compression", "compression@gradients", "downlink", "local", "adapter"),
)


def summary_table(result: dict[str, Any], folder: Path) -> Table:
    """Return a table of the main metric, the bytes on the network, and the time."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    main = main_of(result).name
    for name, value in summary_rows(result, folder).items():
        table.add_row(name, value, style="bold" if name == main else None)
    return table


def summary_rows(result: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the rows of a run's summary: a name and a text each."""
    one, many = ("push", "pushes") if "staleness" in result else ("round", "rounds")
    unit = one if result["rounds"] == 1 else many
    each = human_bytes(result["uplink_bytes"] / max(result["client_updates"], 1))
    here, main = Path.cwd(), main_of(result)
    now, best = (main.text(result[name]) for name in (main.name, f"best_{main.name}"))
    rows = {
        "run": name_of(result, folder),
        "task": f"{result['model']} on {result['dataset']}, {result['nodes']} devices, "
        f"{result['rounds']} {unit}, seed {result['seed']}",
        main.name: f"{now} (best {best})",
        "sent up": _beside_flower(result, "uplink"),
        "sent down": _beside_flower(result, "downlink"),
        "on a link": _on_a_link(result),
        "updates": f"{result['client_updates']} used, {result['failures']} failed; "
        f"a payload of {each} each",
        "took": _took(result),
        "files": str(folder.relative_to(here) if folder.is_relative_to(here) else folder),
    }
    return {name: value for name, value in rows.items() if value}


def name_of(result: dict[str, Any], folder: Path) -> str:
    """Return a run's name: its preset, and the choices that replace the preset's own.

    If the user chose a strategy and no preset, the name leaves out the default preset.
    """
    preset: str = result["algorithm"]
    try:
        overrides = read_overrides(folder)
        choices = read_yaml(folder / HYDRA / "hydra.yaml")["hydra"]["runtime"]["choices"]
    except (OSError, ValueError, KeyError, TypeError):  # nothing else names the preset
        return preset
    if "strategy" not in choices:
        return f"{preset} ({result['strategy']}), as saved"
    chosen = {group: overrides[group] for group in METHOD if group in overrides}
    if (experiment := choices.get("experiment")) and "algorithm" not in overrides:
        preset = f"experiment={experiment} ({choices['strategy']})"  # it may set any group
    if "strategy._target_" in overrides:
        chosen["strategy"] = result["strategy"]
    if "strategy" in chosen and "algorithm" not in overrides:
        preset = chosen.pop("strategy")
        chosen = {group: choices[group] for group in ("compression", "downlink")} | chosen
    parts = ", ".join(f"{group}={choice}" for group, choice in chosen.items())
    return f"{preset} with {parts}" if parts else preset


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
    down, up = (_mbps(result[f"link_{way}_mbps"]) for way in ("down", "up"))
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
