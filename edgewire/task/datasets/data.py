"""The types of a data set, and the helpers that its loaders share."""

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.errors import TaskError, errors_as
from edgewire.task.tables.columns import Columns
from edgewire.task.tensors import Tensors, count, form, leaves, mapped, only, rows, taken
from edgewire.task.transforms import ImageTransform, LogMel, unchanged

MOST_READ = 1 << 26  # entries of a tensor in which NaN is looked for
DOWNLOAD_TIMEOUT = 30.0  # seconds to wait for a server that sends nothing


@dataclass(frozen=True, eq=False)
class Split:
    """Samples: `inputs` for a model, and `targets` to train it with.

    Both are a tensor, or several in a tuple or by name, with one row for each sample. `targets` is
    () for data without targets; None becomes (). `groups`: int64 (N,), the user, writer or sensor
    of each sample, for a partition by groups; None if there are none. A tensor may be mapped from a
    file that is larger than memory, because training reads only the rows of its mini-batch.
    """

    inputs: Tensors
    targets: Tensors = ()
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.targets is None:
            object.__setattr__(self, "targets", ())

    def __len__(self) -> int:
        return count(self.inputs)

    @property
    def labels(self) -> Tensor | None:
        """The classes of the samples, int64 (N,); None if the targets are no classes."""
        found = self.targets
        if isinstance(found, Tensor) and found.dim() == 1 and found.dtype == torch.int64:
            return found
        return None

    def taken(self, index: Tensor) -> "Split":
        """Return the samples at the positions `index`, int64 (k,)."""
        groups = None if self.groups is None else self.groups[index]
        return Split(taken(self.inputs, index), taken(self.targets, index), groups)

    def rows(self, start: int, stop: int) -> "Split":
        """Return views of the samples `start` to `stop` - 1."""
        groups = None if self.groups is None else self.groups[start:stop]
        return Split(rows(self.inputs, start, stop), rows(self.targets, start, stop), groups)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set for training and testing.

    `transform`: turns a batch of inputs, on the device that trains, into a model's input. It must
    compute each sample by itself, and always the same. `classes`: the number of classes; 0 for
    targets that are no classes. `class_names`: the names of the user's class folders, in the order
    of the class ids; empty for other data sets. `group_names`: the names of the groups of a split,
    in the order of their ids; empty for data without groups, and for groups without names.
    `columns`: those of a table, by which further rows are read; None for other data.
    """

    train: Split
    test: Split
    transform: Callable[[Tensors], Tensors] = unchanged
    classes: int = 0
    class_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    columns: Columns | None = None

    def prepared(self, inputs: Tensors, device: str | torch.device = "cpu") -> Tensors:
        """Return inputs as the model takes them, on a device."""
        return self.transform(mapped(lambda tensor: tensor.to(device), inputs))

    @property
    def kind(self) -> str:
        """What a sample is, in the plural: images, rows, windows, texts or samples."""
        inputs = self.train.inputs
        if isinstance(self.transform, ImageTransform):
            return "images"
        if self.columns is not None:
            return "rows"
        if not isinstance(inputs, Tensor) or isinstance(self.transform, LogMel):
            return "samples"
        if not inputs.is_floating_point():
            return "texts" if inputs.dim() == 2 else "samples"
        return {2: "rows", 3: "windows"}.get(inputs.dim(), "samples")

    @property
    def example(self) -> Tensors:
        """A model's input of 2 samples, which are equal; of a data set without samples, zeros.

        It shows the shapes and dtypes.
        """

        def twice(tensor: Tensor) -> Tensor:
            found = tensor.new_zeros(2, *tensor.shape[1:])
            return found.copy_(tensor[:1]) if len(tensor) else found

        return self.prepared(mapped(twice, self.train.inputs))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of its images; raises `TaskError` for data that are no images."""
        images = self.train.inputs
        if not isinstance(self.transform, ImageTransform) or not isinstance(images, Tensor):
            why = "its samples are" if len(self.train) else "there are no data here, and so"
            raise TaskError(
                f"{why} no images that tell the model's size: give such data, dataset.root=, or "
                f"a model that needs none, model._target_="
            )
        channels, height, width = images.shape[1:]
        return channels, height, width


def usable(name: str, data: Data, size: int | None = None) -> Data:
    """Return a data set whose images are scaled, if it satisfies `Data` and `Split`.

    Args:
        name: the data set's name in messages.
        data: what its function has returned; the check reads the labels, not the pixels.
        size: the side in pixels of square images; None: they keep their own.

    Raises:
        TaskError: one line with what was found, what is accepted, and what to do.
    """
    if not isinstance(data, Data):
        cure = "return Data(Split(x, y), Split(x, y)), both imported from edgewire.task.datasets"
        raise TaskError(f"{name} was loaded as a {type(data).__name__}, and Data is taken: {cure}")
    names = len(data.class_names)
    if not isinstance(data.classes, int) or data.classes < 0 or names not in (0, data.classes):
        raise TaskError(
            f"{name} has {names} class_names for classes={data.classes}: give the number of "
            f"classes, 0 for targets of other kinds, and a name for each class, or none"
        )
    for part, split in (("train", data.train), ("test", data.test)):
        expect_rows(f"{name}: {part}", split)
        if isinstance(data.transform, ImageTransform):
            _expect_images(f"{name}: {part}.inputs", split.inputs, part == "train")
        if data.classes:
            _expect_labels(f"{name}: {part}.targets", split, data.classes)
        _expect_finite(f"{name}: {part}.inputs", split.inputs, data.transform)
    if not isinstance(data.transform, ImageTransform):
        return data
    _expect_one_shape(name, data, size)
    return replace(data, train=_scaled(data.train, size), test=_scaled(data.test, size))


def expect_finite_targets(name: str, data: Data) -> None:
    """Raise `TaskError` for NaN or infinity in the targets; `name`: the data set's in messages."""
    for part, split in (("train", data.train), ("test", data.test)):
        _expect_finite(f"{name}: {part}.targets", split.targets)


def expect_rows(where: str, split: Split) -> None:
    """Check that inputs, targets and groups are tensors with one row for each sample."""
    if not isinstance(split, Split):
        raise TaskError(f"{where} is a {type(split).__name__}, and Split is taken")
    for part in ("inputs", "targets", "groups"):
        value = getattr(split, part)
        if value is None and part == "groups":
            continue
        tensors = leaves(value) if isinstance(value, Tensor | tuple | dict) else (value,)
        for tensor in tensors or ((None,) if part == "inputs" else ()):
            if (
                not isinstance(tensor, Tensor)
                or tensor.dim() == 0
                or tensor.layout != torch.strided
                or tensor.requires_grad
                or len(tensor) != len(split)
            ):
                each = "sample" if part == "inputs" else f"of the {len(split)} samples"
                raise TaskError(
                    f"{where}.{part} are {form(tensor)}: give a dense tensor without a gradient, "
                    f"with a row for each {each}"
                )
            if part == "groups" and (tensor.is_floating_point() or tensor.dim() != 1):
                raise TaskError(
                    f"{where}.groups are {form(tensor)}: give the number of a group for each "
                    f"sample, int64 (N,)"
                )


def _expect_finite(where: str, tensors: Tensors, transform: Any = unchanged) -> None:
    """Refuse NaN and infinity in floats, if the transform does not replace those of the first row.

    Floats that are so many that reading them takes long are not looked at.
    """
    for tensor in leaves(tensors):
        if not tensor.is_floating_point() or tensor.numel() > MOST_READ:
            continue
        if not tensor.sum().isfinite() and not (finite := tensor.isfinite()).all():
            row = int((~finite).flatten(1 if tensor.dim() > 1 else 0).nonzero()[0, 0]) + 1
            with suppress(Exception):  # a user's transform may raise anything
                one = transform(taken(tensors, torch.tensor([row - 1])))
                if all(leaf.isfinite().all() for leaf in leaves(one)):
                    continue
            raise TaskError(
                f"{where} have NaN or infinity in row {row}: remove such rows, or give an "
                f"objective (targets) or a transform (inputs) that takes them"
            )


def _expect_images(where: str, images: Tensors, some: bool) -> None:
    good = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.dim() == 4
    if not good or 0 in cast(Tensor, images).shape[not some :]:  # a device has none to test on
        raise TaskError(
            f"{where} are {form(images)}, and uint8 (N, C, H, W) from 0 to 255 is taken, at least "
            f"1 of each: mul(255).round().to(torch.uint8) makes floats from 0 to 1 so, and "
            f"unsqueeze(1) grey images"
        )


def _expect_one_shape(name: str, data: Data, size: int | None) -> None:
    """Check that all images, once scaled to `size`, have one square shape."""
    shapes = [
        (images.shape[1], size or images.shape[2], size or images.shape[3])
        for images in (data.train.inputs, data.test.inputs)
        if isinstance(images, Tensor)
    ]
    if len({*shapes}) > 1 or shapes[0][1] != shapes[0][2]:
        train, test = (" x ".join(map(str, shape)) for shape in shapes)
        raise TaskError(
            f"{name}: images to train on are {train}, those to test on {test}, and models take "
            f"square ones of one shape: give dataset.size=PIXELS, to which they are scaled"
        )


def _expect_labels(where: str, split: Split, classes: int) -> None:
    labels = split.labels
    if labels is None:
        raise TaskError(
            f"{where} are {form(split.targets)}, and int64 ({len(split)},) is taken with "
            f"classes={classes}, a class for each sample: squeeze(1) makes a column so, and long() "
            f"floats"
        )
    low, high = map(int, torch.aminmax(labels)) if len(labels) else (0, 0)
    if low < 0 or high >= classes:
        raise TaskError(
            f"{where} are from {low} to {high}, and 0 to {classes - 1} is taken with "
            f"classes={classes}: number the classes from 0, or give how many there are"
        )


def _scaled(split: Split, size: int | None) -> Split:
    """Return a split with images scaled to `size` x `size`, bilinear with antialiasing."""
    images = only(split.inputs)
    if size is None or images.shape[-2:] == (size, size):
        return split
    images = torch.nn.functional.interpolate(
        images, size=(size, size), mode="bilinear", antialias=True
    )
    return replace(split, inputs=images)


def holdout(
    split: Split, share: float, by_class: bool = True, fold: int = 0
) -> tuple[Split, Split]:
    """Hold back a `share` of every class; return (the remaining samples, the held-back samples).

    `fold`: which part of this size, from 0 on; after the last sample follows the first one.

    Of a class with 2 samples or more, at least 1 is held back. Samples without classes count as one
    class, and so do all samples with `by_class=False`. The draw is always the same, on every
    device: numpy guarantees the streams of `RandomState`, not those of its newer generators.
    """
    random = np.random.RandomState(0)
    held = []
    labels = np.zeros(len(split), np.int64)
    if by_class and split.labels is not None:
        labels = split.labels.numpy()
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        number = max(round(share * len(members)), 1) if len(members) > 1 else 0
        held.append(np.roll(members, -fold * number)[:number])
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[torch.from_numpy(np.concatenate(held))] = True
    return split.taken((~mask).nonzero()[:, 0]), split.taken(mask.nonzero()[:, 0])


def shown(path: Path) -> str:
    """Return `path` for a message; a relative path starts with ./ ."""
    return str(path) if path.is_absolute() else f"./{path}"


def reads_as(file: Path, kind: str, cure: str = "copy it again") -> AbstractContextManager[None]:
    """Return a context that turns any error of a reader into a one-line `TaskError`."""
    return errors_as(f"{shown(file)} cannot be read as {kind}", f": {cure}")


def downloaded(
    name: str, reader: str, root: str | None, download: bool, looked: list[Path], *ways: str
) -> Any:
    """Download a data set with the class `reader` of torchvision, and return its training split.

    `looked`: the folders in which it was not found; `ways`: what else the user can do, for the
    message. Raises `TaskError` without `download`, and if it fails.
    """
    if not download:
        places = " and ".join(map(shown, looked))
        cures = ", or ".join(("give dataset.root=FOLDER", "dataset.download=true", *ways))
        raise TaskError(f"{name} not found: looked in {places}; {cures}")
    import torchvision.datasets

    root, before = root or DEFAULT_ROOT, socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    cure = ": check the network and the folder, or fetch the files on another machine and give "
    try:
        with errors_as(f"{name} could not be downloaded to {root}", f"{cure}dataset.root=FOLDER"):
            return getattr(torchvision.datasets, reader)(root, download=True)
    finally:
        socket.setdefaulttimeout(before)
