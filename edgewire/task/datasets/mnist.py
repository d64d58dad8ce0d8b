"""MNIST and Fashion-MNIST, from the IDX files as torchvision stores them."""

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, downloaded, reads_as
from edgewire.task.transforms import ImageTransform

# Where Debian's package dataset-fashion-mnist puts its four .gz files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = tuple(
    f"{split}-{part}-ubyte"
    for split in ("train", "t10k")
    for part in ("images-idx3", "labels-idx1")
)


def mnist(root: str | None = None, download: bool = False) -> Data:
    """Return MNIST (LeCun et al.): 60,000 training and 10,000 test images of 1x28x28."""
    folder = Path(root or DEFAULT_ROOT, "MNIST", "raw")
    train, test = _load("mnist", "MNIST", root, download, [folder])
    return Data(train, test, ImageTransform((0.1307,), (0.3081,)), 10)


def fashion_mnist(root: str | None = None, download: bool = False) -> Data:
    """Return Fashion-MNIST (Xiao et al. 2017): 60,000 training and 10,000 test images, 1x28x28."""
    folders = [Path(root or DEFAULT_ROOT, "FashionMNIST", "raw")]
    ways = []
    if root is None:
        folders.append(DEBIAN)
        ways.append("install the Debian package dataset-fashion-mnist")
    train, test = _load("fashion_mnist", "FashionMNIST", root, download, folders, *ways)
    return Data(train, test, ImageTransform((0.2860,), (0.3530,)), 10)


def _load(
    name: str, reader: str, root: str | None, download: bool, folders: list[Path], *ways: str
) -> tuple[Split, Split]:
    found = next(filter(None, map(_files, folders)), None)
    if found is None:
        downloaded(name, reader, root, download, folders, *ways)
        found = _files(folders[0])
    return _split(*found[:2]), _split(*found[2:])


def _files(folder: Path) -> list[Path]:
    """Return the paths of `FILES` in a folder, each plain or .gz; [] if one is missing."""
    pairs = [(folder / stem, folder / f"{stem}.gz") for stem in FILES]
    found = [[path for path in pair if path.is_file()] for pair in pairs]
    return [each[0] for each in found] if all(found) else []


def _split(images_path: Path, labels_path: Path) -> Split:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    with reads_as(labels_path, "labels from 0 to 9"):
        if len(images) != len(labels) or int(labels.max()) > 9:
            raise ValueError(f"{len(labels)} up to {labels.max()} for {len(images)} images")
    return Split(images.unsqueeze(1), labels.long())


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the bytes of an IDX file (plain or .gz) as a uint8 tensor of its shape.

    Header: 0, 0, 8 (unsigned byte), number of dimensions, then each size as a big-endian uint32.
    torchvision's own reader does not read .gz, and does not name a broken file. Raises `TaskError`
    for a broken file, and for a file with another number of dimensions.
    """
    start = 4 + 4 * dimensions
    with reads_as(path, "an IDX file", "delete it and fetch it again"):
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = bytearray(file.read())  # torch needs writable memory
        shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
        if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) != start + math.prod(shape):
            raise ValueError(f"{len(content)} bytes, of which the first are {content[:4].hex()}")
    return torch.frombuffer(content, dtype=torch.uint8)[start:].view(shape)
