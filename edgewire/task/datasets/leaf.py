"""LEAF's JSON files (Caldas et al. 2018), such as FEMNIST and Shakespeare: samples by user."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.task.datasets.data import Data, shown
from edgewire.task.datasets.files import data_of, files_of
from edgewire.task.errors import NoData, TaskError
from edgewire.task.transforms import ImageTransform, Standardize

# LEAF's characters, in its order.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PIXELS, CLASSES = 784, 62  # of FEMNIST
NORMALISED = ImageTransform((0.5,), (0.5,))  # for any images, on every device


def leaf(root: str | None = None, test_share: float = 0.1, on_device: bool = False) -> Data:
    """Return the samples of LEAF's files; groups are the users.

    784 values from 0 to 1 are a grey image, uint8 (1, 28, 28), of FEMNIST's 62 classes. Text, as of
    Shakespeare, is int64 (80,), numbers of LEAF's 80 characters; its class is the next character.
    Other values are float32 (F,) as they are; whole numbers to predict are int64, others float32.

    Args:
        root: a folder with train/*.json and test/*.json, as LEAF's `preprocess.sh` writes into
            `data/`. None: the default folder.
        test_share: the share of the training samples that are the test split without test/*.json.
        on_device: whether the samples are a device's own. All are for training then.

    Raises:
        TaskError: files missing or damaged, texts or values of different lengths, or a character
            that LEAF does not have.
    """
    train_files, test_files = files_of(root, (".json",))
    parts = [_samples(train_files)]
    if test_files and not on_device:
        parts.append(_samples(test_files))
    transform: Standardize | ImageTransform
    kinds = {type(x[0]) for x, _, _ in parts}
    if len(kinds) > 1:
        raise TaskError(f"{shown(train_files[0].parent)}: some samples are text, others numbers")
    if kinds == {str}:
        pairs = [(_texts(x), _texts(y)[:, 0]) for x, y, _ in parts]
        transform, classes = Standardize(), len(CHARACTERS)
    else:
        values = [(_values(x), _values(y)) for x, y, _ in parts]
        images = all(_are_images(x, y) for x, y in values)
        made = _images if images else _floats
        pairs = [(made(x), torch.from_numpy(y) if _is_int(y) else _floats(y)) for x, y in values]
        transform, classes = (NORMALISED, CLASSES) if images else (Standardize(), 0)
    (inputs, targets), users = zip(*pairs, strict=True), [each for _, _, each in parts]
    return data_of(
        inputs, targets, users, test_share, on_device, root, transform=transform, classes=classes
    )


def _samples(files: list[Path]) -> tuple[list[Any], list[Any], NDArray[np.str_]]:
    """Return the inputs and targets of all users in files, and each sample's user."""
    inputs, targets, users, counts = list[Any](), list[Any](), list[str](), list[int]()
    for file in files:
        try:
            found = [*_users(json.loads(file.read_text(encoding="utf-8")))]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:150]
            raise TaskError(
                f"{shown(file)} is no file of LEAF's ({type(error).__name__}: {reason}): it has "
                f"users, and user_data with x and y of each user"
            ) from error
        for user, x, y in found:
            inputs += x
            targets += y
            users.append(user)
            counts.append(len(x))
    if not inputs:
        raise NoData(f"{shown(files[0].parent)} has no samples: give dataset.root=FOLDER")
    return inputs, targets, np.repeat(np.array(users, np.str_), counts)


def _users(content: Any) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield each user's name, inputs and targets."""
    for user in content["users"]:
        samples = content["user_data"][user]
        x, y = samples["x"], samples["y"]
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise ValueError(f"the x and y of {str(user)[:40]!r} are no lists of one length")
        yield str(user), x, y


def _texts(texts: list[Any]) -> torch.Tensor:
    """Return the numbers of characters, int64 (N, T)."""
    if not all(isinstance(each, str) and each for each in texts):
        raise TaskError("some samples of LEAF's files are text, others not, or empty")
    if len({len(each) for each in texts}) > 1:
        raise TaskError("texts of LEAF's files differ in length: all are taken at one length")
    codes = np.array(texts).view(np.uint32).reshape(len(texts), -1)
    table = np.full(128, -1)
    table[[ord(each) for each in CHARACTERS]] = np.arange(len(CHARACTERS))
    numbers = np.where(codes < len(table), table[np.minimum(codes, len(table) - 1)], -1)
    if (numbers < 0).any():
        odd = chr(int(codes[numbers < 0][0]))
        raise TaskError(f"the character {odd!r} is none of LEAF's {len(CHARACTERS)}: replace it")
    return torch.from_numpy(numbers)


def _values(values: list[Any]) -> NDArray[Any]:
    """Return numbers, int64 or float64 (N, ...)."""
    try:
        array = np.array(values)
    except ValueError as error:
        raise TaskError("samples of LEAF's files differ in length: give all one length") from error
    if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise TaskError("samples of LEAF's files are no finite numbers and no text")
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def _are_images(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Return whether samples are grey images of one of `CLASSES` classes."""
    classes = y.ndim == 1 and _is_int(y) and y.min() >= 0 and y.max() < CLASSES
    bounds = x.ndim == 2 and x.shape[1] == PIXELS and x.min() >= 0 and x.max() <= 1
    return bool(classes and bounds)


def _images(x: NDArray[Any]) -> torch.Tensor:
    """Return images, uint8 (N, 1, 28, 28): LEAF divides their 8-bit values by 255."""
    return torch.from_numpy(np.round(x * 255).astype(np.uint8)).view(-1, 1, 28, 28)


def _floats(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _is_int(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "i"
