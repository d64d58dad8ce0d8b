"""The values that an experiment, a task and an algorithm set, read from the files in conf/.

Hydra composes the same values, but it takes 60 ms for each run and needs torch. Thousands of stored
runs need only a few of the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from edgewire.report.errors import ResultsError
from edgewire.report.runs import dotted
from papers.make.run_archive import ROOT

CONF = ROOT / "conf"


def effective(overrides: Mapping[str, str], experiment: str = "") -> dict[str, str]:
    """Return the values of a run as text: of its overrides, and of the presets that it chooses.

    `overrides`: key -> value. `experiment`: the name of its experiment, if the overrides lack it.
    An override is stronger than the experiment, the experiment is stronger than the task, and the
    task is stronger than the algorithm. A preset that is not in conf/ sets nothing.
    """
    given = dict(overrides)
    swept = preset("experiment", given.get("experiment", experiment))
    task = preset("task", given.get("task") or swept.get("task", ""))
    default = preset("", "config")
    layers: list[Mapping[str, str]] = [task, swept, given]
    algorithm = next((v["algorithm"] for v in reversed(layers) if "algorithm" in v), "")
    chosen = preset("algorithm", algorithm or default["algorithm"])
    found: dict[str, str] = {}
    for layer in (default, chosen, *layers):
        found |= layer
    return {**found, "algorithm": algorithm or default["algorithm"]}


@cache
def preset(group: str, name: str) -> Mapping[str, str]:
    """Return the keys that conf/GROUP/NAME.yaml sets, and the choices in its `defaults`.

    The keys of a nested mapping are joined by dots. Keys of Hydra itself are left out. The result
    is empty if the file is missing.
    """
    file = CONF / group / f"{name}.yaml"
    if not name.isidentifier() or not file.is_file():
        return {}
    content = _read(file)
    found: dict[str, str] = {}
    for each in content.pop("defaults", ()):
        if isinstance(each, str):
            found |= preset(group, each) if each != "_self_" else {}
            continue
        for key, choice in each.items():
            plain = str(key).removeprefix("override ").removeprefix("/")
            if not plain.startswith("hydra") and choice is not None:
                found[plain] = str(choice)
    content.pop("hydra", None)
    return found | {key: str(value) for key, value in dotted(content) if value is not None}


def description(group: str, name: str) -> str:
    """Return the comment at the top of conf/GROUP/NAME.yaml as one line; "" if it is missing."""
    file = CONF / group / f"{name}.yaml"
    if not name.isidentifier() or not file.is_file():
        return ""
    lines = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#")]
    return " ".join(line for line in lines if not line.startswith("@package"))


def names(group: str) -> list[str]:
    """Return the names of a group's choices."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _read(file: Path) -> dict[str, Any]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ResultsError(f"{file} holds no keys")
    return content
