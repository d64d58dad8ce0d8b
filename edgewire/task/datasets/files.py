"""What sources of the user's own files share: which files to read, classes, the test share."""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, expect_rows, holdout, shown
from edgewire.task.errors import MissingOption, NoData, TaskError, listed
from edgewire.task.tensors import Tensors
from edgewire.task.transforms import unchanged

READERS = 8  # threads: few, because each holds a file's content, and containers may have few cores
WHOLE_NUMBER = re.compile(r"[+-]?\d{1,18}")


def files_of(root: str | None, suffixes: tuple[str, ...]) -> tuple[list[Path], list[Path]]:
    """Return the files to train on and the files to test on; no test files if there are none.

    Args:
        root: a file; or a folder with files train.* and test.*, or with folders train and test of
            files; or a folder of files, which all are for training. None: the default folder.
        suffixes: the ends of the names of files to read in a folder, in lower case.

    Raises:
        NoData: no such file or folder, or a folder without such files.
        TaskError: files to test on, and none to train on.
    """
    path = Path(root or DEFAULT_ROOT).expanduser()
    if path.is_file():
        return [path], []
    if not path.is_dir():
        raise NoData(f"{shown(path)} is neither a file nor a folder: give dataset.root=PATH")
    train, test = (_part(path, name, suffixes) for name in ("train", "test"))
    if test and not train:
        raise TaskError(f"{shown(path)} has test data and no train{suffixes[0]}: add it")
    if train:
        return train, test
    if files := _in(path, suffixes):
        return files, []
    raise NoData(
        f"{shown(path)} has no file that ends in {' or '.join(suffixes)}: give dataset.root=PATH"
    )


def _part(path: Path, name: str, suffixes: tuple[str, ...]) -> list[Path]:
    files = [path / f"{name}{suffix}" for suffix in suffixes]
    found = [file for file in files if file.is_file()]
    return found[:1] or (_in(path / name, suffixes) if (path / name).is_dir() else [])


def _in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return a folder's own files with one of these suffixes, sorted, without hidden ones."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.name.lower().endswith(suffixes) and file.name[0] != "." and file.is_file()
    )


def class_names(
    found: Iterable[str], given: Sequence[str] | None, on_device: bool
) -> tuple[str, ...]:
    """Return the names of all classes, whose places are the class ids.

    They are sorted: by value if all are whole numbers, otherwise as text.

    Args:
        found: the names that the data have.
        given: `dataset.classes`, which may have more; None: the names that the data have.
        on_device: whether the data are a device's own, so that `given` must name all classes:
            otherwise devices with different classes would number them differently.

    Raises:
        MissingOption: no `given` names on a device.
        TaskError: data of a class that is not given, or of fewer than 2 classes.
    """
    found = set(found)
    if given is None and on_device:
        raise MissingOption(
            "a device's own data need the names of all the run's classes, as in "
            "dataset.classes=[cat,dog]"
        )
    names = found if given is None else set(map(str, given))
    numbers = all(WHOLE_NUMBER.fullmatch(name) for name in names)
    ordered = sorted(names, key=(lambda name: (int(name), name)) if numbers else None)
    if unknown := sorted(found - names):
        raise TaskError(
            f"{unknown[0]!r} is no known class: dataset.classes=[{listed(ordered, between=',')}]"
        )
    if len(names) < 2:
        raise TaskError(f"there is one class only, {listed(ordered)}: two or more are taken")
    return tuple(ordered)


def class_ids(values: NDArray[np.str_], names: Sequence[str]) -> torch.Tensor:
    """Return the place of each value in `names`, int64 (N,)."""
    found, places = np.unique(values, return_inverse=True)
    ids = np.array([names.index(str(name)) for name in found], np.int64)
    return torch.from_numpy(ids[places.reshape(-1)])


def data_of(
    splits: Sequence[Split],
    share: float,
    on_device: bool,
    root: str | None,
    *,
    transform: Callable[[Tensors], Tensors] = unchanged,
    class_names: tuple[str, ...] = (),
    group_names: tuple[str, ...] = (),
) -> Data:
    """Return data of a training split and, if there is one, a test split.

    Without a test split a share of the training samples becomes it. It is drawn, always in the same
    way: of each class, if there are classes. A device's own samples are all for training;
    `dataset.holdout` holds some back.

    Raises `TaskError` for a share that is not in [0, 1), for too few samples, and for tensors that
    differ in their numbers of samples.
    """
    if not 0 <= share < 1:
        raise TaskError(f"dataset.test_share={share}: give a share from 0 to below 1")
    place = shown(Path(root or DEFAULT_ROOT))
    for part, split in zip(("train", "test"), splits, strict=False):
        expect_rows(f"{place}: {part}", split)
    train, *tests = splits
    if on_device or not (tests or share):
        test = train.taken(torch.arange(0))
    elif tests:
        test = tests[0]
    else:
        train, test = holdout(train, share, by_class=bool(class_names))
        if not len(test):
            raise TaskError(f"{place} has too few samples to test on a share of them: add more")
    return Data(train, test, transform, len(class_names), class_names, group_names)


def group_ids(*parts: NDArray[np.generic]) -> tuple[list[torch.Tensor], tuple[str, ...]]:
    """Return each sample's group as a number, int64 (N,), and the names of the groups.

    The parts are splits with common groups.
    """
    names, places = np.unique(np.concatenate(parts), return_inverse=True)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    ids = np.split(places.reshape(-1).astype(np.int64), ends)
    return [torch.from_numpy(each) for each in ids], tuple(map(str, names.tolist()))


def read_each(read: Callable[[Path], NDArray[Any]], files: Sequence[Path], out: Tensor) -> Tensor:
    """Return `out` with what `read` returns of each file as a row, which may be shorter.

    Raises one `TaskError` for all files that cannot be read.
    """

    def fill(row: int) -> None:
        values = torch.from_numpy(read(files[row]))
        out[row, ..., : values.shape[-1]] = values

    with ThreadPoolExecutor(READERS) as pool:  # decoders, and reading a file, release the GIL
        done = [pool.submit(fill, row) for row in range(len(files))]
        try:
            wait(done)
        except BaseException:  # Ctrl-C
            pool.shutdown(cancel_futures=True)
            raise
    if wrong := [row for row, each in enumerate(done) if each.exception()]:
        first = done[wrong[0]].exception()
        others = listed([files[row].name for row in wrong[1:]], 4)
        raise TaskError(f"{first}; the same for {others}" if others else str(first)) from first
    return out
