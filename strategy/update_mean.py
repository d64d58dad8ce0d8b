"""What a mean of sparse updates is. The server's own means, and a user's, derive from it."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from edgewire.compression.base import Indices, Vector
from edgewire.task.errors import TaskError


class UpdateMean(ABC):
    """Combines the updates of a round into one update of the same n entries.

    In each round the server calls `add` once for each usable update, in the order of the nodes, and
    then `take`. A round without a usable update has no call. A checkpoint does not hold a mean, so
    nothing that a later round needs may be stored in it.
    """

    size: int  # n, the number of trained parameters

    def begin(self, size: int) -> None:
        """Prepare for updates of `size` entries; called once before the first round of a run."""
        self.size = size

    @abstractmethod
    def add(self, indices: Indices | None, values: Vector, weight: float = 1.0) -> None:
        """Add a node's update.

        `values`: float32 (k,) at the strictly increasing `indices`, uint32 (k,), or float32 (n,) if
        `indices` is None. All values are finite. You may store both arrays; do not change them.
        `weight`: the node's weight in the mean, above 0.
        """

    @abstractmethod
    def take(self) -> tuple[Indices | None, Vector]:
        """Return the mean of the updates that were added since the last call, and forget them.

        The result is (indices, values), with shapes and dtypes as in `add`, in new arrays. Entries
        that it does not hold are 0.
        """

    def taken(self) -> tuple[Indices | None, Vector]:
        """Return what `take` returns; raise `TaskError` in one line if it is no update."""
        found: Any = self.take()
        name = type(self).__name__
        if not isinstance(found, tuple) or len(found) != 2:
            raise TaskError(f"{name}.take() must return (indices, values)")
        indices, values = found
        count = self.size
        if indices is not None:
            if not _is_row(indices, np.uint32):
                raise TaskError(f"{name}.take(): the indices must be None or uint32 (k,)")
            count = len(indices)
            rising = bool((indices[1:] > indices[:-1]).all())
            if not rising or (count and indices[-1] >= self.size):
                raise TaskError(
                    f"{name}.take(): the indices must be strictly increasing, below {self.size}"
                )
        if not _is_row(values, np.float32) or len(values) != count:
            raise TaskError(f"{name}.take(): the values must be float32 ({count},)")
        return indices, values


def _is_row(array: Any, kind: type) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == 1
