"""Replaces what a configuration leaves to the data by finished values, before a new run starts.

So `.hydra/config.yaml`, a resumed run and the nodes have the finished values. Imports that take
seconds are in the functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from edgewire.conf.load import typed
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.trust import NodeGrants, confine_data
from edgewire.task.errors import TaskError

if TYPE_CHECKING:
    from edgewire.task.datasets import Data

SUPERLINK = (
    "edgewire.engines.superlink.run_on_superlink"  # the engine that submits runs to a server
)
CLASSIFICATION = "edgewire.task.objectives.classification.Classification"
BALANCED = "balanced"


def from_data(composed: DictConfig) -> DictConfig:
    """Return a new run's configuration with finished values; it is `composed` if nothing changes.

    Raises `ConfigError` or `TaskError` in one line if the data that a value needs cannot be read.
    """
    return with_objective(composed)


def with_objective(composed: DictConfig) -> DictConfig:
    """Return a configuration with the class weights and the metrics of its data.

    `objective.class_weights=balanced` becomes the list n / (K * count) of the training samples, as
    in scikit-learn; a class without a sample has the weight 1. Without `objective.metrics`, two
    classes are also measured by F1 and AUROC, and top5 needs more than ten classes.
    """
    objective = OmegaConf.to_container(composed.objective, resolve=True)
    options = cast(dict[str, Any], objective if isinstance(objective, dict) else {})
    balanced = options.get("class_weights") == BALANCED
    plain = options.get("_target_") == CLASSIFICATION and options.get("metrics") is None
    if not balanced and not plain:
        return composed
    plainly = {"objective": {"class_weights": None}} if balanced else {}
    try:
        data = loaded(
            as_the_server_reads(typed(cast(DictConfig, OmegaConf.merge(composed, plainly))))
        )
    except (ConfigError, TaskError):
        if balanced:
            raise
        return composed  # `prepare` says what is wrong
    found: dict[str, Any] = {}
    if balanced:
        found["class_weights"] = _weights(data)
    if plain and 0 < data.classes <= 10:
        found["metrics"] = ["accuracy", *(("f1", "auroc") if data.classes == 2 else ())]
    return cast(DictConfig, OmegaConf.merge(composed, {"objective": found})) if found else composed


def _weights(data: Data) -> list[float]:
    """Return the weight of each class; raises `ConfigError` if the targets are no classes."""
    import torch

    targets = data.train.targets
    if not isinstance(targets, torch.Tensor) or targets.dtype != torch.int64 or not len(targets):
        raise ConfigError(
            "objective.class_weights=balanced needs training samples with classes, and there are "
            "none here: give the weights, as in objective.class_weights=[1.0,2.5]"
        )
    counts = torch.bincount(targets[targets >= 0].flatten(), minlength=data.classes).double()
    weights = counts.sum() / (len(counts) * counts)
    return cast(list[float], weights.masked_fill(counts == 0, 1.0).tolist())


def loaded(config: Config) -> Data:
    """Return the data that the run's server has: without samples if only nodes have some.

    `config`: as the server reads it.
    """
    from edgewire.conf.build import data_of, server_data_of

    return server_data_of(config) if is_submitted(config) else data_of(config)


def is_submitted(config: Config) -> bool:
    """Return whether the run is submitted to a running server."""
    return bool(config.engine.get("_target_") == SUPERLINK)


def as_the_server_reads(config: Config) -> Config:
    """Return a submitted run's configuration with the data folder as the server resolves it.

    So `dataset.root` means the same folder here and on the server. Any other configuration is
    returned unchanged. Raises `ConfigError` for a folder that the server would refuse.
    """
    if is_submitted(config):
        config = replace(config, dataset=replace(config.dataset))
        confine_data(config, NodeGrants.of({}))
    return config
