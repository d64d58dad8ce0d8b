"""Replaces what a configuration leaves to the data by finished values, before a new run starts.

So `.hydra/config.yaml`, a resumed run and the nodes have the finished values. Imports that take
seconds are in the functions.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from edgewire.command.engine import engine_for, job_of
from edgewire.conf.load import HERE as CONF
from edgewire.conf.load import typed
from edgewire.conf.privacy import NONE
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.trust import NodeGrants, confine_data
from edgewire.report.reader import read_json, readable
from edgewire.strategy.run.whole_files import replace_file
from edgewire.task.tables.columns import SURVEY, Columns

if TYPE_CHECKING:  # they take seconds to import, and are imported where they are needed
    from torch import Tensor

    from edgewire.task.datasets import Data

SURVEYED = "columns.json"  # in a run's folder: the columns, and what the survey has cost
SUPERLINK = "edgewire.engines.superlink.run_on_superlink"  # submits runs to a running server
TABLE = "edgewire.task.datasets.table.table"
TABLE_MLP = "edgewire.task.models.vectors.table_mlp"
REGRESSION = "edgewire.task.objectives.regression.Regression"
CLASSIFICATION = "edgewire.task.objectives.classification.Classification"
BALANCED = "balanced"


def from_data(composed: DictConfig, folder: Path, words: Iterable[str]) -> DictConfig:
    """Return a new run's configuration with finished values; it is `composed` if nothing changes.

    `folder`: gets the files of a survey. `words`: the user's overrides. Raises `ConfigError` or
    `TaskError` in one line if the data that a value needs cannot be read.
    """
    if composed.privacy.unit != NONE:
        composed = with_noise(composed)
    return with_objective(with_columns(composed, folder, words), folder)


def with_noise(composed: DictConfig) -> DictConfig:
    """Return a configuration with the least noise that keeps the run within its privacy budget.

    Raises `ConfigError` for values that would be computed from the samples without noise, and for
    a budget that is spent.
    """
    from edgewire.conf.build import steps_of
    from edgewire.strategy.privacy.accounting import noise_for, planned_messages
    from edgewire.strategy.privacy.ledger import earlier

    config = typed(composed)
    own = config.dataset.own
    table = own.get("_target_") == TABLE and own.get("columns") in (None, SURVEY)
    scaled = own.get("standardize") and own.get("mean") is None
    if table or scaled or config.objective.get("class_weights") == BALANCED:
        raise ConfigError(
            f"privacy={config.privacy.unit}: means, ranges and class weights of the samples would "
            "be sent without noise: give those of public data, as dataset.columns=FILE, or "
            "dataset.mean= and std="
        )
    if config.privacy.noise is not None:
        return composed
    steps = planned_messages(config) * steps_of(config)
    noise = noise_for(config.privacy, steps, earlier(config)[1])
    return cast(DictConfig, OmegaConf.merge(composed, {"privacy": {"noise": noise}}))


def with_columns(composed: DictConfig, folder: Path, words: Iterable[str]) -> DictConfig:
    """Return a configuration with the columns of its table, and what they decide.

    These are the size of the model, if `task=table` has chosen it, and the objective, unless the
    user has: numbers are learned standardised.
    """
    columns = composed.dataset.get("columns")
    if composed.dataset.get("_target_") != TABLE or str(columns).startswith("{"):
        return composed
    found = cast(DictConfig, OmegaConf.merge(composed))  # a copy
    objective = cast(dict[str, Any], OmegaConf.to_container(found.objective))
    if "class_weights" in found.objective:
        found.objective.class_weights = None  # until the classes are known

    def read() -> Data:
        return loaded(typed(found))

    if columns not in (None, SURVEY):
        found.dataset.columns = _of_file(str(columns))
    data = None if columns == SURVEY else read()
    if data is None or (data.columns is None and is_submitted(typed(found))):
        found.dataset.columns = Columns.from_json(surveyed(found, folder)).to_json()
        data = read()
    if data.columns is None:
        raise ConfigError(
            "there is no table here: give dataset.root=FILE, or dataset.columns=FILE with the "
            "columns of the nodes' tables"
        )
    found.dataset.columns = data.columns.to_json()
    if found.model.get("_target_") == TABLE_MLP:
        found.model = _sized(found.model, data.columns)
    chosen = any(word.startswith("objective=") for word in words)
    target = data.columns.target
    if objective["_target_"] == CLASSIFICATION and target and not data.classes and not chosen:
        if objective.get("class_weights"):
            raise ConfigError(
                "objective.class_weights goes with classes, and the target is a number"
            )
        objective = {"_target_": REGRESSION, "metrics": objective.get("metrics")}
    if objective["_target_"] == REGRESSION and target:
        mean = sum(each.mean for each in target) / len(target)
        squares = sum(each.std**2 + (each.mean - mean) ** 2 for each in target)
        scale = math.sqrt(squares / len(target)) or 1.0
        objective = {"mean": mean, "scale": scale, **objective}
    found.objective = objective
    return found


def _of_file(name: str) -> str:
    """Return the columns in a file: a run's .hydra/config.yaml, or one of columns alone."""
    plain = OmegaConf.to_container(OmegaConf.load(Path(name).expanduser()))
    inner = plain.get("dataset", {}).get("columns") if isinstance(plain, dict) else None
    return Columns.from_json(inner or json.dumps(plain)).to_json()


def _sized(model: DictConfig, columns: Columns) -> DictConfig:
    """Return `model`, or a model for windows, with the numbers of the data's inputs and outputs."""
    from edgewire.task.tables.transform import TableTransform

    transform = TableTransform([asdict(each) for each in columns.features])
    outputs = len(columns.classes) or len(columns.target) or 1
    sizes: dict[Any, int] = {"columns": transform.width} if transform.rows else {}
    if not transform.windows:
        return cast(DictConfig, OmegaConf.merge(model, {**sizes, "outputs": outputs}))
    name = "rows_and_windows" if sizes else "window_cnn"
    files = ("model/table_mlp", "task/table", f"model/{name}")
    before, task, new = (cast(DictConfig, OmegaConf.load(CONF / f"{each}.yaml")) for each in files)
    before = cast(DictConfig, OmegaConf.merge(before, task.model))
    kept = {key: value for key, value in model.items() if key not in before or value != before[key]}
    sizes |= {"channels": transform.windows, "outputs" if sizes else "classes": outputs}
    return cast(DictConfig, OmegaConf.merge(new, kept, sizes))


def surveyed(composed: DictConfig, folder: Path) -> str:
    """Ask the nodes for the columns of their tables, in a run of its own before the training.

    Return them as JSON, and write them into the run's folder. The files of a survey that fails stay
    in the folder `survey`.
    """
    place = folder / SURVEY
    asking = cast(DictConfig, OmegaConf.merge(composed, {"dataset": {"columns": SURVEY}}))
    config = typed(asking)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    task = job_of(config, asking, place)
    engine_for(config, task)(task)
    found = (place / SURVEYED).read_text(encoding="utf-8")
    replace_file(folder / SURVEYED, found)
    shutil.rmtree(place)
    return found


def cost_of(folder: Path) -> Mapping[str, Any]:
    """Return what a run's survey has cost, and found: nodes, bytes and rows; {} without survey."""
    found = readable(read_json, folder / SURVEYED) or {}
    return cast(Mapping[str, Any], found.get("survey", {}))


def with_objective(composed: DictConfig, folder: Path) -> DictConfig:
    """Return a configuration with the class weights and the metrics of its data.

    `objective.class_weights=balanced` becomes the list n / (K * count) of the training samples, as
    in scikit-learn; a class without a sample has the weight 1. `objective.metrics=null` becomes
    `default_metrics`. Raises `ConfigError` for weights without samples.
    """
    options = cast(DictConfig, composed.objective)
    balanced = options.get("class_weights") == BALANCED
    unnamed = options.get("_target_") == CLASSIFICATION and options.get("metrics") is None
    if not balanced and not unnamed:
        return composed
    found: dict[str, Any] = {"class_weights": None} if balanced else {}
    config = typed(cast(DictConfig, OmegaConf.merge(composed, {"objective": found})))
    data = loaded(config)
    if balanced:
        counts = _counts(data, folder)
        if not counts.sum():
            raise ConfigError(
                "objective.class_weights=balanced needs training samples with classes, and there "
                "are none here: give the weights, as in objective.class_weights=[1.0,2.5]"
            )
        weights = counts.sum() / (len(counts) * counts)
        found["class_weights"] = weights.masked_fill(counts == 0, 1.0).tolist()
    if unnamed and data.classes:
        found["metrics"] = _default_metrics(config, data, _counts(data, folder))
    return cast(DictConfig, OmegaConf.merge(composed, {"objective": found})) if found else composed


def _default_metrics(config: Config, data: Data, counts: Tensor) -> list[str]:
    """Return the names of a new run's metrics."""
    from edgewire.strategy.factory import asks_nodes, made
    from edgewire.task.objectives.metrics import default_metrics

    table = config.dataset.own.get("_target_") == TABLE and not config.privacy.on
    known = counts.tolist() if table else []
    majority = max(known, default=0.0) / max(sum(known), 1.0)
    asked = data.classes == 2 and asks_nodes(made(config))
    return default_metrics(data.classes, scores=not asked, majority=majority)


def _counts(data: Data, folder: Path) -> Tensor:
    """Return the number of training samples of each class, float64 (K,).

    Of a survey, it is the number of the nodes' rows, without classes that few rows have. Without
    classes it is empty.
    """
    import torch

    if counts := cost_of(folder).get("classes"):
        return torch.tensor(counts, dtype=torch.float64)
    targets = data.train.targets
    if not isinstance(targets, torch.Tensor) or targets.dtype != torch.int64:
        return torch.empty(0)
    return torch.bincount(targets[targets >= 0].flatten(), minlength=data.classes).double()


def loaded(config: Config) -> Data:
    """Return the data that the run's server has: without samples if only nodes have some.

    The `dataset.root` of a submitted run is the folder that the server takes it for. Raises
    `ConfigError` for a folder that the server would refuse.
    """
    from edgewire.conf.build import data_of, server_data_of

    if not is_submitted(config):
        return data_of(config)
    config = replace(config, dataset=replace(config.dataset))
    confine_data(config, NodeGrants.of({}))
    return server_data_of(config)


def is_submitted(config: Config) -> bool:
    """Return whether the run is submitted to a running server."""
    return bool(config.engine.get("_target_") == SUPERLINK)
