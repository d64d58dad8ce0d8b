"""NumPy files: arrays by name; those of .npy files are mapped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, reads_as, shown
from edgewire.task.datasets.files import class_ids, class_names, data_of, files_of, group_ids
from edgewire.task.errors import NoData, TaskError
from edgewire.task.tensors import Tensors, only
from edgewire.task.transforms import ImageTransform, Standardize

Arrays = Mapping[str, NDArray[Any]]
# Types that torch lacks, or can do little with, and the types that hold their values.
WIDER = {"u2": "i4", "u4": "i8", "u8": "i8"}


def npz(
    root: str | None = None,
    target: str | None = "y",
    inputs: str | Sequence[str] | None = None,
    group: str | None = None,
    classes: Sequence[str] | None = None,
    images: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    test_share: float = 0.2,
    on_device: bool = False,
) -> Data:
    """Return arrays of NumPy files as a data set; each array has a row a sample.

    Arrays in .npy files are mapped from the file, so that they may be larger than memory. A share
    of the training rows for testing, and targets of other types than int64 and float32, are copied
    into memory, and so is an .npz file.

    On the device that trains, floats become float32 and integers int64 (tokens).

    Args:
        root: an .npz file; or a folder with train.npz and test.npz, with folders train and test of
            .npy files, with .npy files, or with one .npz file. If an array is named NAME_train, the
            test split is NAME_test (Keras's files). None: the default folder.
        target: the array to predict; None for none. Text is a class, as whole numbers are with
            `classes`. Other whole numbers become int64, and floats float32.
        inputs: the array for the model, or two or more, which the model gets as a dictionary.
            None: all arrays that are no target and no group.
        group: the array with the user, writer or sensor of each sample.
        classes: the names of all classes; None: those in the training and test rows.
        images: whether the inputs are uint8 images, (N, H, W), (N, C, H, W) or (N, H, W, C).
        mean, std: a number for each feature (N, F) or channel (N, C, ...), by which inputs are
            standardised. None: 0 and 1; for images 0.5 and 0.25, of values from 0 to 1.
        test_share: the share of the rows that are the test split if there is no array for it.
        on_device: whether the arrays are a device's own. All rows are for training then.

    Raises:
        TaskError: no such files or arrays, a file that cannot be read, arrays of other types or
            numbers of rows, or an unknown class.
    """
    train, test = _parts(root)
    parts = [train] if test is None or on_device else [train, test]
    place = shown(Path(root or DEFAULT_ROOT))
    names = [inputs] if isinstance(inputs, str) else inputs
    if names is None:
        names = [name for name in train if name not in (target, group)]
    if not names or len(set(names)) < len(names) or {target, group} & set(names):
        raise TaskError(
            f"{place}: dataset.inputs= must name at least one array, each once, and not the target "
            f"or the group; there are {', '.join(train)}"
        )
    targets, found = _targets(parts, place, target, classes, on_device)
    grouped = group is not None and (group in train or not on_device)  # a device needs no groups
    groups: Sequence[Tensor | None] = [None] * len(parts)
    people = tuple[str, ...]()
    if grouped:
        groups, people = group_ids(*(_array(each, place, str(group), "group") for each in parts))
    splits = []
    for part, *others in zip(parts, targets, groups, strict=True):
        chosen = {name: _tensor(_array(part, place, name, "inputs"), name) for name in names}
        values: Tensors = chosen[names[0]] if len(names) == 1 else chosen
        splits.append(Split(_images(values) if images else values, *others))
    transform: Any = Standardize(tuple(mean or ()), tuple(std or ()))
    if images:
        channels = only(splits[0].inputs).shape[1]
        transform = ImageTransform(
            tuple(mean or (0.5,) * channels), tuple(std or (0.25,) * channels)
        )
    return data_of(
        splits, test_share, on_device, root,
        transform=transform, class_names=found, group_names=people,
    )  # fmt: skip


def _parts(root: str | None) -> tuple[Arrays, Arrays | None]:
    """Return the arrays to train on, and those to test on; None if there are none."""
    try:
        train_files, test_files = files_of(root, (".npz",))
    except NoData:
        train_files, test_files = files_of(root, (".npy",))
    train, test = (arrays_in(files) for files in (train_files, test_files))
    if test:
        return train, test
    apart, held = (
        {name.removesuffix(end): train[name] for name in train if name[1:].endswith(end)}
        for end in ("_train", "_test")
    )
    return (apart, held or None) if apart else (train, None)


def arrays_in(files: list[Path]) -> Arrays:
    """Return the arrays in one .npz file, or in .npy files, by name."""
    if sum(file.name.lower().endswith(".npz") for file in files) > 1:
        raise TaskError(
            f"{shown(files[0].parent)} has several .npz files: give one as dataset.root=, or name "
            f"them train.npz and test.npz"
        )
    found: dict[str, NDArray[Any]] = {}
    for file in files:
        # numpy's advice for Python objects, allow_pickle=True, would run code of the file
        with reads_as(file, "arrays", "save arrays without Python objects, in .npz or .npy files"):
            if file.name.lower().endswith(".npz"):
                if not is_zipfile(file):
                    raise TaskError(f"{shown(file)} is no .npz file, such as numpy.savez writes")
                with np.load(file, allow_pickle=False) as archive:
                    found |= dict(archive)
            else:  # copy on write: torch takes writable memory only, and the file must not change
                found[file.stem] = np.load(file, mmap_mode="c", allow_pickle=False)
    return found


def _array(part: Arrays, place: str, name: str, key: str) -> NDArray[Any]:
    """Return an array with samples. Raises `TaskError` for others."""
    if name not in part:
        said = "there are " + ", ".join(part) if part else "there are none"
        raise TaskError(f"{place} has no array {name} for dataset.{key}=: {said}")
    array = part[name]
    if not array.ndim or not len(array):
        raise TaskError(f"{place}: the array {name} has no samples: give a row for each sample")
    return array


def _tensor(array: NDArray[Any], name: str) -> Tensor:
    """Return a tensor of an array of numbers, which stays mapped if torch has its type."""
    kind = array.dtype
    if kind.kind not in "biuf" or kind.itemsize > 8:
        raise TaskError(f"the array {name} is {kind}, and integers or floats are taken")
    if kind.kind == "u" and kind.itemsize == 8 and (array > np.iinfo(np.int64).max).any():
        raise TaskError(f"the array {name} has whole numbers above 2^63 - 1, the largest of torch")
    wider = WIDER.get(f"{kind.kind}{kind.itemsize}", kind.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(array.astype(wider, copy=False)))


def _images(values: Tensors) -> Tensor:
    """Return images as (N, C, H, W); views, so that they stay mapped."""
    if not isinstance(values, Tensor):
        raise TaskError("dataset.images=true is for one array: name it as dataset.inputs=")
    if values.dim() not in (3, 4):
        raise TaskError(f"images have the shape {tuple(values.shape)}, and (N, H, W) is taken")
    if values.dim() == 3:
        return values.unsqueeze(1)
    return values.permute(0, 3, 1, 2) if values.shape[3] <= 4 < values.shape[1] else values


def _targets(
    parts: list[Arrays],
    place: str,
    target: str | None,
    classes: Sequence[str] | None,
    on_device: bool,
) -> tuple[list[Any], tuple[str, ...]]:
    """Return the targets of each part, and the names of the classes; () for other targets."""
    if target is None:
        if classes is not None:
            raise TaskError("dataset.classes names the classes of a target: give dataset.target=")
        return [()] * len(parts), ()
    arrays = [_array(part, place, target, "target") for part in parts]
    arrays = [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays]
    texts = all(array.dtype.kind in "US" for array in arrays)
    if texts or classes is not None:
        if any(array.ndim != 1 or array.dtype.kind not in "USbiu" for array in arrays):
            raise TaskError(
                f"{place}: {target} are no classes: text or whole numbers (N,) are taken"
            )
        names = [np.char.decode(a) if a.dtype.kind == "S" else a.astype(np.str_) for a in arrays]
        every = {str(name) for each in names for name in np.unique(each)}
        found = class_names(every, classes, on_device)
        return [class_ids(each, found) for each in names], found
    tensors = [_tensor(array, target) for array in arrays]
    return [each.float() if each.is_floating_point() else each.long() for each in tensors], ()
