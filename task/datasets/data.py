"""What a data set is, and the helpers that its loaders share."""

import http.client
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

DOWNLOAD_TIMEOUT = 30.0  # seconds without a reply


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in memory: `images` uint8 (N, C, H, W), `labels` int64 (N,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; `mean` and `std` are per channel, of images scaled to 0..1.

    Both empty: every image is to be normalised by its own (`task.steps.prepare`).
    `class_names` is filled where classes have names of the user's own (folders), in id order.
    """

    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What `load_data` was asked for."""

    root: str | None
    download: bool
    size: int | None
    classes: tuple[str, ...] | None = None


DATASETS: Registry[Callable[[Request], Data]] = Registry("data set", "task.datasets")


def resize(split: Split, size: int) -> Split:
    """Images scaled to `size` x `size`, bilinear with antialiasing."""
    if split.images.shape[-2:] == (size, size):
        return split
    images = torch.nn.functional.interpolate(
        split.images, size=(size, size), mode="bilinear", antialias=True
    )
    return Split(images, split.labels)


def holdout(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """(rest, held back): `share` of every class, at least 1 sample of those that have 2 or more.

    The same on every device: numpy froze RandomState's streams, not those of its newer generators.
    """
    random = np.random.RandomState(seed)
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
    """The error for a data set that is not there: where it was looked for, what to do."""
    places = " and ".join(shown(path) for path in looked)
    cures = ", or ".join(("give dataset.root=FOLDER", "dataset.download=true", *ways))
    return TaskError(f"{name} not found: looked in {places}; {cures}")


def shown(path: Path) -> str:
    """`path` as messages write it: relative ones start with ./ ."""
    return str(path) if path.is_absolute() else f"./{path}"


@contextmanager
def downloading(name: str, root: str) -> Iterator[None]:
    """A failing download ends in one line; a silent server does not block for ever."""
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
