"""Data sets that a seeded generator makes: they need no download and no file.

Each is a function in a module of this package, which a file of `conf/dataset/` names as `_target_`.
They use `numpy.random.RandomState`, whose streams numpy guarantees, so the samples of a seed are
the same on every device.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task.datasets.data import Split
from edgewire.task.errors import TaskError


def expect_at_least(least: float, **options: float) -> None:
    """Raise `TaskError` for the first option of a data set that is below `least`."""
    for name, value in options.items():
        if not value >= least:
            raise TaskError(f"dataset.{name}={value}: give at least {least}")


def divided(
    tests: NDArray[np.bool_],
    inputs: NDArray[Any],
    targets: NDArray[Any],
    groups: NDArray[np.int64] | None = None,
) -> tuple[Split, Split]:
    """Return the training split and the test split of samples.

    `tests`: bool (N,), True for the samples of the test split. `inputs`, `targets`, `groups`:
    arrays of N rows; float64 becomes float32.
    """
    numbers = None if groups is None else _tensor(groups)
    whole = Split(_tensor(inputs), _tensor(targets), numbers)
    train, test = (torch.from_numpy(np.flatnonzero(part)) for part in (~tests, tests))
    return whole.taken(train), whole.taken(test)


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
