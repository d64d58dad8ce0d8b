"""Builds the objects that a configuration names: data, model, optimiser, partition, strategy."""

from __future__ import annotations

import functools
import inspect
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from edgewire.compression.batchnorm import trained_entries
from edgewire.compression.flower.native_tensors import LocalVectors
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.conf.check import build, check_target, parameters_of
from edgewire.conf.privacy import NODE
from edgewire.conf.schema import Config, ConfigError, DatasetConfig
from edgewire.conf.trust import NodeGrants
from edgewire.task.datasets import Data, Split
from edgewire.task.datasets.data import expect_finite_targets, holdout, usable
from edgewire.task.datasets.folder import without_photos
from edgewire.task.errors import MissingOption, NoData, TaskError, described, listed
from edgewire.task.finetuning import (
    freeze_others,
    hold_frozen,
    in_dtype,
    load_tensors,
    personal_names,
    tensors_in,
    warn_of_personal,
)
from edgewire.task.flat_model import FlatModel
from edgewire.task.local import LocalAlgorithm
from edgewire.task.model_file import said_in
from edgewire.task.models import build_model
from edgewire.task.objectives import Objective
from edgewire.task.objectives.classification import Classification
from edgewire.task.optimizers import SGD, ServerOptimizer
from edgewire.task.partition import Partition
from edgewire.task.process import uncompiled
from edgewire.task.rng import CPU, IsolatedRng
from edgewire.task.transforms import ImageTransform


def data_of(config: Config, folder: str | None = None) -> Data:
    """Return the data set of the configuration, or a device's own data: its `folder` or file."""
    d, objective = config.dataset, objective_of(config)
    shared = folder is None  # a device's data may change between two runs of one process
    source = replace(d, validate=0.0, fold=0)
    data = _shared(json.dumps(asdict(source), sort_keys=True)) if shared else _read(d, folder)
    if shared and d.validate:
        train, test = holdout(data.train, d.validate, data.classes > 0, d.fold)
        data = replace(data, train=train, test=test)
    if objective.finite_targets:
        expect_finite_targets(d.name, data)
    if isinstance(objective, Classification) and not data.classes and shared:
        data = replace(data, classes=numbered(data))
    return by_themselves(data) if d.per_image else data


def numbered(data: Data) -> int:
    """Return the number of classes of targets from 0 on without names; 0 for other targets."""
    labels = [data.train.labels, data.test.labels]
    every = torch.cat([torch.arange(0), *(each for each in labels if each is not None)])
    low, high = map(int, torch.aminmax(every)) if len(every) else (0, 0)
    return high + 1 if low >= 0 and 0 < high < len(every) else 0


def server_data_of(config: Config) -> Data:
    """Return the data set of a server whose nodes may have their own data.

    If there are no data where the server looks by default (`dataset.root` is not given), its splits
    are empty. `imagefolder` then needs `dataset.classes`. Raises `ConfigError` or `TaskError` for
    data that cannot be read, and for a given `dataset.root` without data.
    """
    d = config.dataset
    if _is_given(d.root):
        return data_of(config)
    photos = d.own["_target_"] == "edgewire.task.datasets.folder.imagefolder"
    try:
        return data_of(config)
    except NoData:
        if str(d.own.get("columns")).startswith("{"):
            from edgewire.task.datasets.table import without_rows  # pyarrow is for tables alone

            return without_rows(d.own["columns"])
        if photos:
            data = without_photos(d.classes or (), d.size)
        else:  # nobody here knows the shape of a sample
            empty = Split(torch.empty(0))
            data = Data(empty, empty, classes=len(set(d.classes or ())))
        return by_themselves(data) if d.per_image else data
    except TaskError as error:
        if not photos or d.classes:
            raise
        raise ConfigError(
            f"{error}; or, for photos that lie at the nodes alone, dataset.classes=[cat,dog]"
        ) from error


def _is_given(root: str | None) -> bool:
    """Return whether the user gave this `dataset.root`: `confine_data` may have set it."""
    return root not in (None, NodeGrants.of({}).data)


def by_themselves(data: Data) -> Data:
    """Return data whose images are each normalised by their own mean and deviation."""
    if not isinstance(data.transform, ImageTransform):
        raise ConfigError("dataset.per_image=true is for images, and these samples are none")
    return replace(data, transform=ImageTransform())


@functools.lru_cache(maxsize=2)
def _shared(options: str) -> Data:
    """Return the data set of a `DatasetConfig`, given as JSON."""
    return _read(DatasetConfig(**json.loads(options)), None)


def _read(d: DatasetConfig, folder: str | None) -> Data:
    """Return a data set, or a device's own data from its `folder`, as the source gives them."""
    given = _arguments(d, folder)
    target = check_target("dataset", d.own)
    try:
        data: Data = target.made(**given)
    except MissingOption as error:
        raise ConfigError(str(error)) from error
    except (TaskError, ConfigError):
        raise
    except FileNotFoundError as error:
        # A source that reads `root` finds no data there; any other source lacks a file of its own.
        kind = NoData if "root" in parameters_of(target.make)[0] else TaskError
        raise kind(f"dataset: {described(error)}") from error
    except Exception as error:  # no `ConfigError`, which a node tells the server: it may name files
        raise TaskError(f"dataset: {described(error)}") from error
    found = usable(d.name, data, None if "size" in given else d.size)
    if d.size and "size" not in given and not isinstance(found.transform, ImageTransform):
        raise ConfigError(f"dataset.size is not an option of {d.own['_target_']}: it has no images")
    return found


def table_options(config: Config, folder: str | None = None) -> dict[str, Any]:
    """Return the arguments of `table` for a configuration without columns; `folder`: a device's.

    Raises `ConfigError` for another data set.
    """
    d, table = config.dataset, "edgewire.task.datasets.table.table"
    if d.own.get("_target_") != table:
        raise ConfigError("dataset.columns=survey is for dataset=table")
    own = {key: value for key, value in d.own.items() if key not in ("_target_", "columns")}
    return {**own, **_arguments(d, folder)}


def _arguments(d: DatasetConfig, folder: str | None) -> dict[str, Any]:
    """Return the arguments of a source's function that are not among its own keys.

    These are the options that every data set has, such as `root`, if they are given. A device's own
    data are the `folder` as root, and `on_device=True` if the function has this parameter. Raises
    `ConfigError` for an option that the function does not have; `size` scales images of any.
    """
    name = d.own.get("_target_", d.name)  # a model's file may lack the function
    made = check_target("dataset", d.own).make if d.own else lambda: None
    parameters, takes_any, _ = parameters_of(made)
    reads = {"root", "on_device"} if name.startswith("edgewire.") else {"root"}
    if folder is not None and not reads <= parameters.keys():
        raise ConfigError(
            "a device's own data need a dataset= that reads them, such as csv or imagefolder, or a "
            f"function with a parameter root: {name} does not"
        )
    given: dict[str, Any] = {}
    for key, default in (("root", None), ("download", False), ("size", None), ("classes", None)):
        value = getattr(d, key)
        if value == default or (key == "root" and folder is not None):
            continue
        if key in parameters or (takes_any and key != "root"):
            given[key] = str(Path(value).expanduser()) if key == "root" else value
        elif key not in ("root", "size") or (key == "root" and _is_given(value)):
            raise ConfigError(f"dataset.{key} is not an option of {name}")
    if folder is not None:
        given["root"] = folder
        if "on_device" in parameters:
            given["on_device"] = True
    required = "root" in parameters and parameters["root"].default is inspect.Parameter.empty
    if required and "root" not in given:
        raise NoData(f"{name} needs a file or folder: give dataset.root=PATH")
    return given


def device_of(config: Config) -> torch.device:
    """Return the torch device. Raises `ConfigError` if this machine cannot use it."""
    try:
        zero = torch.zeros(1, device=config.device)
        zero.tolist()  # fails for "meta", whose tensors have no values
        return zero.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device={config.device} cannot be used here: {reason}") from error


def model_of(config: Config, data: Data) -> nn.Module:
    """Return the configured model, initialised from the run's seed.

    A model of `edgewire.task.models` is made for the data's images. A class or function of the
    user's is called with its arguments in the configuration. Raises `TaskError` for a `model.file`
    that does not fit, and for patterns in `trainable` or `personal` that match no parameter.
    """
    module, m = _plain_model_of(config, data), config.model
    tensors = {} if m.file is None else tensors_in(m.file, m.sha256)
    said = said_in(m.file) if m.file else {}
    warn_of_personal(str(m.file), said.get("personal"))
    before = said.get("class_names")
    names = [*data.class_names] or [*map(str, range(data.classes))]
    if before and names and not m.new and before != names:
        last = [*module.state_dict()][-1].rpartition(".")[0]
        raise TaskError(
            f"{m.file} has the classes {listed(before)}, and the data {listed(names)}: "
            f"name them alike, or leave its last layer out by 'model.new=[\"{last}.*\"]'"
        )
    adapted = not tensors.keys() <= module.state_dict().keys()  # it may have adapters' tensors, too
    if m.file is not None and not adapted:
        load_tensors(module, tensors, m.file, m.new)
    with IsolatedRng(CPU, config.seed):
        module = build("adapter", config.adapter).add(module)
    if m.file is not None and adapted:
        load_tensors(module, tensors, m.file, m.new)
    if config.trainable is not None:
        freeze_others(module, config.trainable)
    if config.frozen_eval:
        hold_frozen(module, config.trainable)
    personal_names(module, config.personal)  # mistakes show where the model is first built
    return in_dtype(module, config.model.dtype)


def flat_model_of(config: Config, data: Data) -> FlatModel:
    """Return the configured model with its parameters in one vector; the errors of `model_of`."""
    module = model_of(config, data)
    return FlatModel(module, config.device, personal_names(module, config.personal))


def _plain_model_of(config: Config, data: Data) -> nn.Module:
    if own := config.model.own:
        with IsolatedRng(CPU, config.seed):
            module = build("model", own)
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model._target_={own['_target_']} gave a {type(module).__name__}, and an "
                "nn.Module is taken"
            )
        return module
    channels, size, _ = data.image_shape
    return build_model(
        config.model.name, channels=channels, size=size, classes=data.classes, seed=config.seed
    )


def subject_of(config: Config, data: Data, parameters: int) -> dict[str, Any]:
    """Return what a run trains, by keys of `result.json`; `parameters`: those that are trained."""
    sizes = {split: size for split in ("train", "test") if (size := len(getattr(data, split)))}
    return {
        "parameters": parameters,
        "algorithm": config.algorithm,
        "strategy": str(config.strategy["_target_"]).rpartition(".")[2],
        "nodes": config.nodes,
        "dataset": config.dataset.name,
        "model": config.model.name,
        "data": {**sizes, "kind": data.kind, "classes": data.classes},
    }


def local_of(config: Config) -> LocalAlgorithm:
    """Return what a node does with its mini-batches between two messages."""
    local: LocalAlgorithm = build("local", config.local)
    return local


def vectors_of(config: Config, local: LocalAlgorithm, layout: Layout) -> LocalVectors:
    """Return the local algorithm's vectors for a model; `layout`: of its flat vector.

    Raises `ConfigError` for an unknown quantizer.
    """
    try:
        codec = make_codec(quantizer=local.quantizer, feedback=False)
    except ValueError as error:
        raise ConfigError(f"local: {error}") from error
    size = trained_entries(layout)
    tensors = [t for t, end in enumerate(layout.offsets[1:].tolist()) if end > size]
    nodes = config.nodes if local.over_all_nodes else 0
    vectors = LocalVectors.of(local.vectors, layout.without(tensors), codec)
    return vectors._replace(nodes=nodes, share=share_of(config))


def share_of(config: Config) -> float:
    """Return the share of the nodes that train in a round; 1 for a strategy without rounds."""
    fraction = float(config.strategy.get("fraction_train", 1.0))
    least = int(config.strategy.get("min_train_nodes", 1))
    return min(max(int(config.nodes * fraction), least, 1) / config.nodes, 1.0)


def steps_of(config: Config) -> int:
    """Return the number of noisy steps of one message with differential privacy.

    These are a node's mini-batches, or the one sum of a round.
    """
    if config.privacy.unit == NODE or config.strategy.get("update") == "gradient":
        return 1
    # 1 / 0.1 is 10, and not more
    return config.local_steps or math.ceil(round(config.local_epochs / config.privacy.rate, 6))


def optimizer_of(config: Config, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the nodes' optimiser.

    Raises `ConfigError` for values that its class refuses.
    """
    if not parameters:
        raise ConfigError("the model has no parameters: there is nothing to train")
    with uncompiled():
        optimizer: Optimizer = build("optimizer", config.optimizer)(parameters, lr=config.lr)
    return optimizer


def objective_of(config: Config) -> Objective:
    """Return the loss that training minimises, and the metrics of an evaluation.

    Raises `TaskError` for metrics that a run cannot record.
    """
    objective: Objective = build("objective", config.objective)
    objective.check()
    return objective


def partition_of(config: Config, data: Data) -> Partition:
    """Return the partition of the training split among the nodes.

    Raises `ConfigError` for options that the partitioner refuses.
    """
    partitioner = build("partition", config.partition)
    return Partition(partitioner, data.train, config.nodes, config.seed)


def server_optimizer_of(config: Config) -> ServerOptimizer:
    """Return a strategy's optimiser (`strategy/optimizer=`); SGD if it has none."""
    if "optimizer" not in config.strategy:
        return SGD()
    optimizer: ServerOptimizer = build("strategy.optimizer", config.strategy["optimizer"])
    return optimizer
