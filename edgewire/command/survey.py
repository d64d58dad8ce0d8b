"""Asks the nodes for the columns of their tables, in a run of its own before the training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from edgewire.command.engine import engine_for, job_of
from edgewire.conf.load import typed
from edgewire.strategy.run.whole_files import replace_file
from edgewire.task.tables.columns import SURVEY

FILE = "columns.json"  # in a run's folder: the columns, and what the survey has cost


def surveyed(composed: DictConfig, folder: Path) -> str:
    """Return the columns of the nodes' tables, as JSON, and write them into the run's folder.

    The files of a survey that fails stay in the folder `survey`.
    """
    place = folder / SURVEY
    asking = cast(DictConfig, OmegaConf.merge(composed, {"dataset": {"columns": SURVEY}}))
    config = typed(asking)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    task = job_of(config, asking, place)
    engine_for(config, task)(task)
    found = (place / FILE).read_text(encoding="utf-8")
    replace_file(folder / FILE, found)
    shutil.rmtree(place)
    return found


def cost_of(folder: Path) -> Mapping[str, Any]:
    """Return what a run's survey has cost, and found: nodes, bytes and rows; {} without survey."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return cast(Mapping[str, Any], found.get("survey", {}))
