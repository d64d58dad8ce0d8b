"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), read by torchvision."""

from pathlib import Path
from typing import Any

import torch

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, downloaded
from edgewire.task.errors import TaskError
from edgewire.task.transforms import ImageTransform


def cifar10(root: str | None = None, download: bool = False) -> Data:
    """Return CIFAR-10: 50,000 training and 10,000 test images of 3x32x32 in 10 classes."""
    train, test = _load("cifar10", root, download)
    return Data(train, test, ImageTransform((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)), 10)


def cifar100(root: str | None = None, download: bool = False) -> Data:
    """Return CIFAR-100: 50,000 training and 10,000 test images of 3x32x32 in 100 classes."""
    train, test = _load("cifar100", root, download)
    return Data(
        train, test, ImageTransform((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)), 100
    )


def _load(name: str, root: str | None, download: bool) -> tuple[Split, Split]:
    import torchvision.datasets

    reader: Any = getattr(torchvision.datasets, name.upper())
    root = root or DEFAULT_ROOT
    folder = Path(root, reader.base_folder)
    try:
        train = reader(root, train=True)
    except RuntimeError as error:  # torchvision raises it for absent and for damaged files
        if folder.is_dir() and not download:
            raise TaskError(
                f"{folder} is incomplete or damaged (MD5 sums differ): delete it and fetch "
                f"it again, e.g. with dataset.download=true"
            ) from error
        train = downloaded(name, name.upper(), root, download, [folder])
    return _split(train), _split(reader(root, train=False))


def _split(read: Any) -> Split:
    images = torch.from_numpy(read.data).permute(0, 3, 1, 2).contiguous()
    return Split(images, torch.tensor(read.targets))
