"""Reads a run's command-line overrides from Hydra's files in its folder, and names the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

HYDRA = Path(".hydra")
OVERRIDES = HYDRA / "overrides.yaml"
# groups that a preset sets: the run's name states other choices in these groups
METHOD = (
    *("strategy", "strategy/optimizer", "strategy/staleness"),
    *("compression", "compression@gradients", "downlink"),
)


def overrides_of(folder: Path) -> dict[str, str]:
    """Return a run's overrides by their keys.

    Raises `FileNotFoundError`, or `YAMLError` or `ValueError` for a damaged file.
    """
    overrides = OmegaConf.to_container(OmegaConf.load(folder / OVERRIDES), resolve=False)
    if not isinstance(overrides, list):
        raise ValueError(f"{folder} holds no run")
    pairs = (str(word).lstrip("+").partition("=") for word in overrides)
    return {key: value for key, _, value in pairs}


def name_of(result: dict[str, Any], folder: Path) -> str:
    """Return a run's name: its preset, and the choices that replace the preset's own.

    If the user chose a strategy and no preset, the name leaves out the default preset.
    """
    preset: str = result["algorithm"]
    if not (folder / OVERRIDES).exists():
        return preset
    overrides = overrides_of(folder)
    choices = OmegaConf.load(folder / HYDRA / "hydra.yaml").hydra.runtime.choices
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
