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
        if not isinstance(found, tuple) or len(found) != 2 or not self._is_update(*found):
            raise TaskError(
                f"{type(self).__name__}.take() must return (indices, values): strictly increasing "
                f"uint32 (k,) below {self.size}, float32 (k,); or None, float32 ({self.size},)"
            )
        indices, values = found
        return indices, values

    def _is_update(self, indices: Any, values: Any) -> bool:
        if not _is_row(values, np.float32):
            return False
        if indices is None:
            return len(values) == self.size
        if not _is_row(indices, np.uint32) or len(indices) != len(values):
            return False
        return bool((indices[1:] > indices[:-1]).all() and (indices < self.size).all())


def _is_row(array: Any, kind: type) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == 1
