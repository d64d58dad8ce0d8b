"""From a configuration to the objects it names; what client and strategy both need."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import nn
from torch.optim import Optimizer

from compression import Codec, make_codec
from conf.schema import Config, ConfigError
from task.datasets import Data, load_data, load_folder
from task.models import build_model
from task.partition import Partition


def codec_of(config: Config) -> Codec:
    """Return the nodes' codec. Raises `ConfigError` for unknown methods or options."""
    try:
        return make_codec(**asdict(config.compression))  # type: ignore[call-overload]
    except ValueError as error:
        raise ConfigError(str(error)) from error


def data_of(config: Config, folder: str | None = None) -> Data:
    """Return the data set, or a device's own `folder` of class folders; loaded once a process."""
    d = config.dataset
    if folder is None:
        return _data(d.name, d.root, d.download, d.size)
    if d.name != "imagefolder":
        raise ConfigError(f"a device's own folder needs dataset=imagefolder, not {d.name}")
    split = load_folder(folder, d.classes, size=d.size or 32, channels=3)
    classes = len(d.classes) if d.classes else int(split.labels.max()) + 1
    return Data(split, split, classes, (0.5,) * 3, (0.25,) * 3)


@functools.lru_cache(maxsize=2)
def _data(name: str, root: str | None, download: bool, size: int | None) -> Data:
    return load_data(name, root=root, download=download, size=size)


def model_of(config: Config, data: Data) -> nn.Module:
    """Return the configured model for the data's images, initialised from the run's seed."""
    channels, size = data.train.images.shape[1], data.train.images.shape[-1]
    return build_model(
        config.model.name, channels=channels, size=size, classes=data.classes, seed=config.seed
    )


def optimizer_of(config: Config, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the nodes' optimiser. Raises `ConfigError` for values that it does not take."""
    try:
        optimizer: Optimizer = instantiate(config.optimizer)(parameters, lr=config.lr)
    except InstantiationException as error:
        raise ConfigError(f"optimizer: {error.__cause__ or error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"optimizer: {error}") from error
    return optimizer


def partition_of(config: Config, data: Data) -> Partition:
    """Return the spread of the training split over the nodes."""
    partitioner: Any = instantiate(config.partition)
    return Partition(partitioner, data.train.labels, config.nodes, config.seed)
