"""Builds the objects that a configuration names: data, model, optimiser, partition, strategy."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from flwr.serverapp.strategy import Strategy
from torch import nn
from torch.optim import Optimizer

from compression.batchnorm import trained_entries
from compression.flower.native_tensors import LocalVectors
from compression.layout import Layout
from compression.make import make_codec
from conf.check import build
from conf.schema import Config, ConfigError
from conf.submitted_runs import NodeGrants
from task.datasets import Data, load_data, load_folder
from task.datasets.data import expect_usable, holdout
from task.datasets.folder import DEFAULT_SIZE, PHOTOS, has_photos, without_photos
from task.errors import TaskError
from task.finetuning import freeze_others, in_dtype, load_file
from task.local import LocalAlgorithm
from task.models import build_model
from task.objectives import Objective
from task.optimizers import SGD, ServerOptimizer
from task.partition import Partition
from task.process import uncompiled
from task.transforms import ImageTransform


def data_of(config: Config, folder: str | None = None) -> Data:
    """Return the data set of the configuration, or the photos in a device's own `folder`."""
    data = _own_data(config, folder)
    return by_themselves(data) if config.dataset.per_image else data


def server_data_of(config: Config) -> Data:
    """Return the data set of a server whose nodes may have their own folders.

    With `dataset.classes` and without `dataset.root`, the server needs no photos: its splits are
    then empty. Raises `ConfigError` if there are no photos here and no `dataset.classes` either.
    """
    d = config.dataset
    # `confine_data` sets a submitted run's root to the machine's own data folder.
    said = d.root not in (None, NodeGrants.of({}).data)
    if d.own or d.name != "imagefolder" or said or has_photos(d.root, d.classes or ()):
        return data_of(config)
    if not d.classes:
        try:
            return data_of(config)
        except TaskError as error:
            raise ConfigError(
                f"{error}; or, for photos that lie at the nodes alone, dataset.classes=[cat,dog]"
            ) from error
    data = without_photos(d.classes, d.size)
    return by_themselves(data) if d.per_image else data


def by_themselves(data: Data) -> Data:
    """Return data whose images are each normalised by their own mean and deviation."""
    if not isinstance(data.transform, ImageTransform):
        raise ConfigError("dataset.per_image=true is for images, and these samples are none")
    return replace(data, transform=ImageTransform())


def _own_data(config: Config, folder: str | None) -> Data:
    d = config.dataset
    if d.own and folder is None:
        return _of_target(json.dumps(d.own, sort_keys=True), d.name, d.validate)
    if folder is None:
        classes = tuple(d.classes) if d.classes else None
        return _data(d.name, d.root, d.download, d.size, classes, d.validate)
    if d.own or d.name != "imagefolder":
        raise ConfigError(f"a device's own folder needs dataset=imagefolder, not {d.name}")
    # Without the list, two nodes with different class folders would number the classes differently.
    if not d.classes:
        raise ConfigError(
            "a device's own folder needs the names of all the run's classes, as in "
            "dataset.classes=[cat,dog]"
        )
    split = load_folder(folder, d.classes, size=d.size or DEFAULT_SIZE)
    return Data(split, split, PHOTOS, len(set(d.classes)))


@functools.lru_cache(maxsize=2)
def _of_target(own: str, name: str, validate: float) -> Data:
    """Return the data of the user's own function; `own`: its name and arguments as JSON."""
    data = build("dataset", json.loads(own))
    expect_usable(name, data)
    return _validated(data, validate)


def _validated(data: Data, validate: float) -> Data:
    """Return data with a share of the training set in place of the test set; 0: unchanged data."""
    if not validate:
        return data
    train, test = holdout(data.train, validate)
    return replace(data, train=train, test=test)


@functools.lru_cache(maxsize=2)
def _data(
    name: str,
    root: str | None,
    download: bool,
    size: int | None,
    classes: tuple[str, ...] | None,
    validate: float,
) -> Data:
    data = load_data(name, root=root, download=download, size=size, classes=classes)
    return _validated(data, validate)


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

    A model of `task.models` is made for the data's images. A class or function of the user's is
    called with its arguments in the configuration. Raises `TaskError` for a `model.file` that does
    not fit, and for patterns in `trainable` that match no parameter.
    """
    module = _plain_model_of(config, data)
    if config.model.file is not None:
        load_file(module, config.model.file, config.model.sha256)
    with _seeded(config.seed):
        module = build("adapter", config.adapter).add(module)
    if config.trainable is not None:
        freeze_others(module, config.trainable)
    return in_dtype(module, config.model.dtype)


def _plain_model_of(config: Config, data: Data) -> nn.Module:
    if own := config.model.own:
        with _seeded(config.seed):
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


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """In this context torch's draws depend on the seed; afterwards its state is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def local_of(config: Config) -> LocalAlgorithm:
    """Return what a node does with its mini-batches between two messages."""
    local: LocalAlgorithm = build("local", config.local)
    return local


def vectors_of(local: LocalAlgorithm, layout: Layout) -> LocalVectors:
    """Return the local algorithm's vectors for a model; `layout`: of its flat vector.

    Raises `ConfigError` for an unknown quantizer.
    """
    try:
        codec = make_codec(quantizer=local.quantizer, feedback=False)
    except ValueError as error:
        raise ConfigError(f"local: {error}") from error
    size = trained_entries(layout)
    tensors = [t for t, end in enumerate(layout.offsets[1:].tolist()) if end > size]
    return LocalVectors.of(local.vectors, layout.without(tensors), codec)


def share_of(config: Config) -> float:
    """Return the share of the nodes that train in a round; 1 for a strategy without rounds."""
    fraction = float(config.strategy.get("fraction_train", 1.0))
    least = int(config.strategy.get("min_train_nodes", 1))
    return min(max(int(config.nodes * fraction), least, 1) / config.nodes, 1.0)


def optimizer_of(config: Config, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the nodes' optimiser. Raises `ConfigError` for values that its class refuses."""
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


def strategy_of(config: Config) -> Strategy | Callable[..., Any]:
    """Return a strategy of Flower, or a callable that makes a strategy of EdgeWire from codecs.

    The YAML files of EdgeWire's strategies have `_partial_`. So `build` returns a callable, which
    takes the arguments that the file does not give.
    """
    strategy: Strategy | Callable[..., Any] = build("strategy", config.strategy)
    return strategy


def server_optimizer_of(config: Config) -> ServerOptimizer:
    """Return a strategy's optimiser (`strategy/optimizer=`); SGD if it has none."""
    if "optimizer" not in config.strategy:
        return SGD()
    optimizer: ServerOptimizer = build("strategy.optimizer", config.strategy["optimizer"])
    return optimizer
