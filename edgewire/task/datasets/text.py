"""Text as bytes: windows for a model that predicts each next byte."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, reads_as, shown
from edgewire.task.datasets.files import files_of
from edgewire.task.errors import TaskError
from edgewire.task.transforms import Standardize

SUFFIXES = (".txt", ".md")


def text(
    root: str | None = None,
    length: int = 64,
    test_share: float = 0.1,
    on_device: bool = False,
) -> Data:
    """Return the bytes of files as windows: inputs and targets uint8 (N, length).

    The device that trains makes int64 of them. A target is the byte after its input byte. Windows
    do not overlap; the bytes after the last full window of a file are left out. Tokens are 0 to
    255, so text of any language and any encoding will do. One file is mapped, so that it may be
    larger than memory; several are read into memory. Each file is a group, such as a writer.

    Args:
        root: a file; or a folder with train.txt and test.txt, with folders train and test of files,
            or with files. None: the default folder.
        length: bytes of a window.
        test_share: the share of each file's windows, its last ones, that are the test split if
            there are no files for it.
        on_device: whether the text is a device's own. All windows are for training then.

    Raises:
        TaskError: no files, or none with a full window; a `length` below 1; a share not in [0, 1).
    """
    if length < 1 or not 0 <= test_share < 1:
        raise TaskError(
            f"dataset.length={length}, dataset.test_share={test_share}: give a length of at least "
            f"1, and a share from 0 to below 1"
        )
    train_files, test_files = files_of(root, SUFFIXES)
    share = 0.0 if on_device or test_files else test_share
    train, held = _splits(train_files, length, share)
    test = _splits(test_files, length, 0.0)[0] if test_files and not on_device else held
    if not len(train) or (share and not len(test)):
        place = shown(Path(root or DEFAULT_ROOT))
        raise TaskError(
            f"{place} has too little text for windows of {length} bytes to train and to test on: "
            f"add more, or give a smaller dataset.length="
        )
    names = (file.name for file in train_files)
    return Data(train, test, Standardize(), group_names=tuple(names))


def _splits(files: list[Path], length: int, share: float) -> tuple[Split, Split]:
    """Return the windows of files, and their last ones, a `share` of each file's."""
    first, last = [], []
    for number, file in enumerate(files):
        inputs, targets = _windows(file, length)
        cut = len(inputs) - round(share * len(inputs))
        groups = torch.full((len(inputs),), number)
        first.append(Split(inputs[:cut], targets[:cut], groups[:cut]))
        last.append(Split(inputs[cut:], targets[cut:], groups[cut:]))
    return _joined(first), _joined(last)


def _windows(file: Path, length: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a file, as views of its bytes: each uint8 (N, length)."""
    with reads_as(file, "text"):
        size = file.stat().st_size
        # Copy on write: torch takes writable memory only, and the file must not change.
        data: NDArray[np.uint8] = np.memmap(file, np.uint8, "c") if size else np.empty(0, np.uint8)
    windows = max(len(data) - 1, 0) // length
    tensor = torch.from_numpy(data)
    inputs, targets = (tensor[at : at + windows * length] for at in (0, 1))
    return inputs.view(windows, length), targets.view(windows, length)


def _joined(splits: list[Split]) -> Split:
    if len(splits) == 1:
        return splits[0]
    parts = ("inputs", "targets", "groups")
    return Split(*(torch.cat([getattr(split, part) for split in splits]) for part in parts))
