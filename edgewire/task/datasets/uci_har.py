"""Human activity recognition with smartphones (Anguita et al. 2013): windows of motion sensors."""

import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, reads_as, shown
from edgewire.task.datasets.files import data_of
from edgewire.task.errors import NoData, TaskError

FOLDER = "UCI HAR Dataset"
SIGNALS = tuple(
    f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
ACTIVITIES = (
    *("walking", "walking_upstairs", "walking_downstairs"),
    *("sitting", "standing", "laying"),
)


def uci_har(root: str | None = None, on_device: bool = False) -> Data:
    """Return windows of 9 signals, float32 (N, 9, 128) in g and rad/s, and 6 activities.

    The signals are the body's acceleration, its angular velocity and the total acceleration along
    three axes, at 50 Hz. Groups are the 30 subjects; those of the test split take no part in
    training.

    Args:
        root: the folder "UCI HAR Dataset", or one that holds it. None: the default folder.
        on_device: whether the windows are a device's own: there is no test split then.

    Raises:
        TaskError: files missing or damaged.
    """
    path = Path(root or DEFAULT_ROOT).expanduser()
    path = path / FOLDER if (path / FOLDER).is_dir() else path
    if not (path / "train" / "Inertial Signals").is_dir():
        raise NoData(
            f"uci_har not found: {shown(path)} has no train/Inertial Signals/; give "
            f"dataset.root=FOLDER, in which the archive from archive.ics.uci.edu is unpacked"
        )
    parts = ("train",) if on_device else ("train", "test")
    splits = [_read(path, part) for part in parts]
    return data_of(splits, 0.0, on_device, root, class_names=ACTIVITIES)


def _read(path: Path, part: str) -> Split:
    """Return the windows of a split, their classes and their subjects."""
    folder = path / part
    signals = [
        _numbers(folder / "Inertial Signals" / f"{signal}_{part}.txt", np.float32)
        for signal in SIGNALS
    ]
    labels, subjects = (
        _numbers(folder / f"{name}_{part}.txt", np.int64)[:, 0] for name in ("y", "subject")
    )
    lengths = {len(each) for each in (*signals, labels, subjects)}
    known = labels.min() >= 1 and labels.max() <= len(ACTIVITIES)
    if len(lengths) > 1 or not known or not np.isfinite(signals).all():
        raise TaskError(
            f"{shown(folder)} is damaged: copy it again; activities are 1 to 6, signals are "
            f"finite, and all files have as many rows"
        )
    windows = torch.from_numpy(np.stack(signals, axis=1))
    return Split(windows, torch.from_numpy(labels - 1), torch.from_numpy(subjects))


def _numbers(file: Path, kind: type[np.generic]) -> NDArray[np.generic]:
    """Return the numbers in a text file, with a row for each line."""
    with reads_as(file, "numbers"), warnings.catch_warnings(action="ignore"):
        rows = np.loadtxt(file, dtype=kind, ndmin=2)
        if not len(rows):
            raise ValueError("it is empty")
        return rows
