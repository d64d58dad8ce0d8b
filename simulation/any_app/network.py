"""Reads a network of `conf/network/` by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from ..clock import Ideal
from ..errors import UsageError

FOLDER = Path(__file__).parents[2] / "conf" / "network"


class Speeds(NamedTuple):
    """A device class: its share of the nodes, and its speed relative to the reference device."""

    share: float
    speed: float


def network_named(name: str) -> Ideal:
    """Return the network that `network=NAME` selects in `run.py`, or raise `UsageError`."""
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name not in names:
        raise UsageError(f"--network: there is no {name}; there are: {', '.join(names)}")
    values = _values(name)
    classes = {key: Speeds(**value) for key, value in values.pop("classes", {}).items()}
    return Ideal(**values, classes=dict(classes))


def _values(name: str) -> dict[str, Any]:
    """Return a file's values; they override those of the files in its defaults list."""
    own: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    merged: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        merged |= _values(base)
    return merged | own
