"""Asks the nodes for the columns of their tables, in a run of its own before the training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from edgewire.command.engine import engine_for, job_of
from edgewire.command.saved_config import continues
from edgewire.conf.load import typed
from edgewire.strategy.run.whole_files import replace_file
from edgewire.task.tables.columns import SURVEY

FILE = "columns.json"  # in a run's folder: the columns, and what the survey has cost
_found = dict[str, str]()  # the columns of the jobs of a sweep, by its folder and their data


def surveyed(composed: DictConfig) -> str:
    """Return the columns of the nodes' tables, as JSON, and write them into the run's folder.

    The jobs of a sweep share one survey, and a continued sweep keeps it. The files of a survey that
    fails stay in the folder `survey`.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    words = [hydra.sweep.dir, *(OmegaConf.to_yaml(composed[key]) for key in ("dataset", "engine"))]
    key = "\n".join([*words, str(composed.nodes)])
    if continues() and (folder / FILE).exists():
        _found[key] = (folder / FILE).read_text(encoding="utf-8")
    elif hydra.mode is not RunMode.MULTIRUN or key not in _found:
        asking = cast(DictConfig, OmegaConf.merge(composed, {"dataset": {"columns": SURVEY}}))
        config, place = typed(asking), folder / SURVEY
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        task = job_of(config, asking, place)
        engine_for(config, task)(task)
        _found[key] = (place / FILE).read_text(encoding="utf-8")
        shutil.rmtree(place)
    replace_file(folder / FILE, _found[key])
    return _found[key]


def cost_of(folder: Path) -> Mapping[str, Any]:
    """Return what a run's survey has cost, and found: nodes, bytes and rows; {} without survey."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return cast(Mapping[str, Any], found.get("survey", {}))
