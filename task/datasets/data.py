"""The types of a data set, and the helpers that its loaders share."""

import http.client
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from task.errors import TaskError
from task.registry import Registry

DOWNLOAD_TIMEOUT = 30.0  # seconds to wait for a server that sends nothing


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in memory: `images` uint8 (N, C, H, W), `labels` int64 (N,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; `mean` and `std` have one value per channel, for images scaled to 0..1.

    If both are empty, `task.steps.prepare` normalises each image by its own mean and deviation.
    `class_names`: the names of the user's class folders, in the order of the class ids; empty for
    other data sets.
    """

    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """The arguments of `load_data` that a loader gets."""

    root: str | None
    download: bool
    size: int | None
    classes: tuple[str, ...] | None = None


def expect_usable(name: str, data: Data, size: int | None = None) -> None:
    """Check that a data set satisfies `Data` and `Split`; reads the labels, not the pixels.

    Args:
        name: the data set's name in messages.
        data: a loader's result.
        size: the side in pixels to which its images will be scaled; None: not scaled.

    Raises:
        TaskError: one line with what was found, what is accepted, and what to do.
    """
    if not isinstance(data, Data):
        raise TaskError(f"{name} was loaded as a {type(data).__name__}, and Data is taken")
    if not isinstance(data.classes, int) or data.classes < 1:
        raise TaskError(f"{name} has classes={data.classes}: give their number, 1 or more")
    for part, split in (("train", data.train), ("test", data.test)):
        _expect_images(f"{name}: {part}.images", split.images)
        _expect_labels(f"{name}: {part}.labels", split.labels, len(split.images), data.classes)
    shape, other = (
        (s.images.shape[1], size or s.images.shape[2], size or s.images.shape[3])
        for s in (data.train, data.test)
    )
    if shape != other:
        raise TaskError(
            f"{name}: images to train on are {_times(shape)}, those to test on {_times(other)}: "
            f"make all of one shape (dataset.size=PIXELS does where their size differs)"
        )
    if shape[1] != shape[2]:
        raise TaskError(
            f"{name}: its images are {_times(shape)}, and models take square ones: "
            f"give dataset.size=PIXELS, to which they are scaled"
        )
    _expect_normalisation(name, data, shape[0])
    if data.class_names and len(data.class_names) != data.classes:
        raise TaskError(
            f"{name} has {len(data.class_names)} class_names for classes={data.classes}: "
            f"give one for each class, or none"
        )


def _expect_tensor(where: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TaskError(
            f"{where} are a {type(value).__name__}, and a tensor is taken: give torch.as_tensor()"
        )


def _expect_images(where: str, images: Tensor) -> None:
    _expect_tensor(where, images)
    if images.dtype != torch.uint8:
        cure = "images.mul(255).round().to(torch.uint8), if they are floats from 0 to 1"
        raise TaskError(
            f"{where} are {images.dtype}, and uint8 from 0 to 255 is taken: give {cure}"
        )
    if images.dim() != 4 or 0 in images.shape:
        cure = "; give images.unsqueeze(1), if they are grey" if images.dim() == 3 else ""
        raise TaskError(
            f"{where} have the shape {tuple(images.shape)}, and (N, C, H, W) is taken: samples, "
            f"channels, rows, columns, at least 1 of each{cure}"
        )


def _expect_labels(where: str, labels: Tensor, samples: int, classes: int) -> None:
    _expect_tensor(where, labels)
    if tuple(labels.shape) != (samples,):
        cure = "; give labels.squeeze(1)" if tuple(labels.shape) == (samples, 1) else ""
        raise TaskError(
            f"{where} have the shape {tuple(labels.shape)}, and ({samples},) is taken, "
            f"a class for each image{cure}"
        )
    if labels.dtype != torch.int64:
        cure = "labels.long(), if they are numbers of classes"
        raise TaskError(f"{where} are {labels.dtype}, and int64 is taken: give {cure}")
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < 0 or high >= classes:
        raise TaskError(
            f"{where} are from {low} to {high}, and 0 to {classes - 1} is taken with "
            f"classes={classes}: number the classes from 0, or give how many there are"
        )


def _expect_normalisation(name: str, data: Data, channels: int) -> None:
    """Check that either every channel has a mean and a deviation, or no channel has them.

    Raises `TaskError` otherwise, or if a mean is not finite, or a deviation not finite and above 0.
    """
    mean, std = data.mean, data.std
    if not isinstance(mean, tuple) or not isinstance(std, tuple):
        raise TaskError(f"{name} has mean={mean}, std={std}: give tuples, a number for a channel")
    if len(mean) != len(std) or len(mean) not in (0, channels):
        raise TaskError(
            f"{name} has {len(mean)} mean and {len(std)} std for {channels} channels: "
            f"give one of each a channel, or neither to normalise each image by its own"
        )
    if not all(math.isfinite(m) and 0 < s < math.inf for m, s in zip(mean, std, strict=True)):
        raise TaskError(f"{name} has mean={mean}, std={std}: give finite numbers, std above 0")


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


DATASETS: Registry[Callable[[Request], Data]] = Registry("data set", "task.datasets")


def resize(split: Split, size: int) -> Split:
    """Return a split with images scaled to `size` x `size`, bilinear with antialiasing."""
    if split.images.shape[-2:] == (size, size):
        return split
    images = torch.nn.functional.interpolate(
        split.images, size=(size, size), mode="bilinear", antialias=True
    )
    return Split(images, split.labels)


def holdout(split: Split, share: float) -> tuple[Split, Split]:
    """Hold back a `share` of every class; return (the remaining samples, the held-back samples).

    Of a class with 2 samples or more, at least 1 is held back. The draw is always the same, on
    every device: numpy guarantees the streams of `RandomState`, not those of its newer generators.
    """
    random = np.random.RandomState(0)
    held = []
    labels = split.labels.numpy()
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        count = max(round(share * len(members)), 1) if len(members) > 1 else 0
        held.append(members[:count])
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[torch.from_numpy(np.concatenate(held))] = True
    return (
        Split(split.images[~mask], split.labels[~mask]),
        Split(split.images[mask], split.labels[mask]),
    )


def missing(name: str, looked: list[Path], *ways: str) -> TaskError:
    """Return the error for an absent data set, with the folders searched and what to do."""
    places = " and ".join(shown(path) for path in looked)
    cures = ", or ".join(("give dataset.root=FOLDER", "dataset.download=true", *ways))
    return TaskError(f"{name} not found: looked in {places}; {cures}")


def shown(path: Path) -> str:
    """Return `path` for a message; a relative path starts with ./ ."""
    return str(path) if path.is_absolute() else f"./{path}"


@contextmanager
def downloading(name: str, root: str) -> Iterator[None]:
    """Turn a failed download in this context into a one-line `TaskError`; limit waits for data."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        yield
    except (RuntimeError, OSError, http.client.HTTPException) as error:
        lines = str(error).split("\n") if str(error) else [type(error).__name__]
        reason = next(line.strip() for line in reversed(lines) if line.strip())
        raise TaskError(
            f"{name} could not be downloaded to {root} ({reason}): check the network and the "
            f"folder, or fetch the files on another machine and give dataset.root=FOLDER"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
