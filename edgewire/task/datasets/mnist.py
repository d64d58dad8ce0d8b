"""MNIST and Fashion-MNIST, from the IDX files as torchvision stores them."""

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import DATASETS, Data, Request, Split, downloading, missing
from edgewire.task.errors import TaskError
from edgewire.task.transforms import ImageTransform

# Where Debian's package dataset-fashion-mnist puts its four .gz files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = tuple(
    f"{split}-{part}-ubyte"
    for split in ("train", "t10k")
    for part in ("images-idx3", "labels-idx1")
)


@DATASETS.register("mnist")
def mnist(request: Request) -> Data:
    """Return MNIST (LeCun et al.): 60,000 training and 10,000 test images of 1x28x28."""
    folder = Path(request.root or DEFAULT_ROOT, "MNIST", "raw")
    return _load("mnist", "MNIST", request, [folder], mean=0.1307, std=0.3081)


@DATASETS.register("fashion_mnist")
def fashion_mnist(request: Request) -> Data:
    """Return Fashion-MNIST (Xiao et al. 2017): 60,000 training and 10,000 test images, 1x28x28."""
    folders = [Path(request.root or DEFAULT_ROOT, "FashionMNIST", "raw")]
    ways = []
    if request.root is None:
        folders.append(DEBIAN)
        ways.append("install the Debian package dataset-fashion-mnist")
    return _load("fashion_mnist", "FashionMNIST", request, folders, *ways, mean=0.2860, std=0.3530)


def _load(
    name: str,
    torchvision_name: str,
    request: Request,
    folders: list[Path],
    *ways: str,
    mean: float,
    std: float,
) -> Data:
    folder = next((f for f in folders if all(_file(f, stem) for stem in FILES)), None)
    if folder is None and request.download:
        import torchvision.datasets

        root = request.root or DEFAULT_ROOT
        with downloading(name, root):
            getattr(torchvision.datasets, torchvision_name)(root, download=True)
        folder = folders[0]
    if folder is None:
        raise missing(name, folders, *ways)
    train, test = (_split(folder, prefix) for prefix in ("train", "t10k"))
    return Data(train, test, ImageTransform((mean,), (std,)), 10)


def _file(folder: Path, stem: str) -> Path | None:
    """Return the path of the file `stem` in a folder, plain or .gz; None if it has neither."""
    return next((p for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()), None)


def _split(folder: Path, prefix: str) -> Split:
    images_path, labels_path = (_file(folder, stem) for stem in FILES if stem.startswith(prefix))
    assert images_path is not None
    assert labels_path is not None
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise _broken(labels_path, f"{len(labels)} labels for {len(images)} images")
    if len(labels) == 0 or int(labels.max()) > 9:
        raise _broken(labels_path, "no labels" if len(labels) == 0 else "a label above 9")
    return Split(images.unsqueeze(1), labels.long())


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the bytes of an IDX file (plain or .gz) as a uint8 tensor of its shape.

    Header: 0, 0, 8 (unsigned byte), number of dimensions, then each size as a big-endian uint32.
    torchvision's own reader does not read .gz, and does not name a broken file. Raises `TaskError`
    for a broken file, and for a file with another number of dimensions.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise _broken(path, str(error)) from error
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise _broken(path, "its header is not that of an IDX file")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) != start + math.prod(shape):
        raise _broken(path, f"{len(content)} bytes, not {start + math.prod(shape)}")
    # A bytearray, because torch needs writable memory.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].view(shape)


def _broken(path: Path, reason: str) -> TaskError:
    return TaskError(f"{path} is broken ({reason}): delete it and fetch it again")
