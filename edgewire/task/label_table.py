"""A data set of labels and indices, on numpy, for the partitioners of flwr_datasets.

Import this module only to use a partitioner: the packages that it imports take seconds to load.
"""

from typing import Any

import numpy as np
from datasets import Dataset, disable_progress_bars
from datasets.table import InMemoryTable
from numpy.typing import NDArray

disable_progress_bars()


class LabelTable(Dataset):  # type: ignore[misc]  # datasets has no types
    """A `datasets.Dataset` that returns selections as numpy arrays of indices.

    A selection of `Dataset` takes 2 ms to make and read. In a round in which 50 of 1,000 nodes
    train for the first time, selections would take most of the time. A selection of `LabelTable` is
    one numpy indexing operation. Columns are numpy arrays too; `Dataset` would convert them element
    by element.

    Args:
        index: int64 (N,), the position of each row in the caller's data.
        columns: int64 (N,) each, such as the classes ("label") and the groups ("group") of the
            rows.
    """

    def __init__(self, index: NDArray[np.int64], **columns: NDArray[np.int64]) -> None:
        self._columns = {"index": index, **columns}
        super().__init__(InMemoryTable.from_pydict(self._columns))

    def __getitem__(self, key: Any) -> Any:
        return self._columns[key]

    def sort(self, column_names: str, **_: Any) -> "LabelTable":
        """Return the rows sorted by a column; the sort is stable."""
        order = np.argsort(self._columns[column_names], kind="stable")
        return LabelTable(**{name: column[order] for name, column in self._columns.items()})

    def select(self, indices: Any, **_: Any) -> NDArray[np.int64]:
        """Return the positions in the caller's data ("index") of the rows `indices`, int64 (k,).

        `Dataset.shard` calls it, too.
        """
        return self._columns["index"][np.asarray(indices, np.int64)]
