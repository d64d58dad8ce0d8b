"""The partition of a data set over simulated nodes.

It works with any partitioner of `flwr_datasets` that uses labels, groups or sizes, and with `Iid`,
`Natural` and `Sampled` from this module.
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import edgewire.task.lazy_imports  # noqa: F401  # before any import of flwr_datasets
from edgewire.task.datasets.data import Split
from edgewire.task.errors import TaskError, errors_as

# Keys that separate this module's random streams from other streams with the same seed.
_SHUFFLE, _DRAW, _GROUPS = 1, 2, 3


@dataclass(frozen=True)
class Sampled:
    """Every node draws its own `samples` distinct samples; nodes may share some.

    Use it for more nodes than samples. It stores nothing, so 100,000 nodes take no memory.
    """

    samples: int = 50

    def draw(self, total: int, seed: int, node: int) -> NDArray[np.int64]:
        """Return the node's indices in 0..total-1, int64 (samples,), from its own random stream."""
        random = np.random.default_rng((seed, node, _DRAW))
        return random.choice(total, self.samples, replace=False)


@dataclass(frozen=True)
class Iid:
    """Equal shares of the shuffled data set, the same as those of flwr_datasets' `IidPartitioner`.

    Importing flwr_datasets' class would take 100 MB of memory on a device.
    """

    num_partitions: int


@dataclass(frozen=True)
class Natural:
    """Whole groups of samples: of a user, a writer or a sensor. No two nodes share a group.

    With as many nodes as groups each node has one group, in the order of the groups' numbers, as
    with flwr_datasets' `NaturalIdPartitioner`. With fewer nodes, each node has several groups,
    drawn at random: as many as the others, or one more. `GroupedNaturalIdPartitioner` cannot make
    any number of partitions in this way.
    """

    num_partitions: int
    _partition_by: ClassVar[str] = "group"  # as flwr_datasets' partitioners have it

    def cut(self, groups: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
        """Return each node's samples, int64 (n,) each; `groups`: each sample's, int64 (N,)."""
        found, group = np.unique(groups, return_inverse=True)
        if self.num_partitions > len(found):
            raise TaskError(
                f"nodes={self.num_partitions} is more than the {len(found)} groups of the training "
                f"samples: give nodes={len(found)} or fewer"
            )
        order = np.arange(len(found))
        if self.num_partitions < len(found):
            order = np.random.default_rng((seed, _GROUPS)).permutation(len(found))
        node_of = np.empty(len(found), np.int64)
        for node, own in enumerate(np.array_split(order, self.num_partitions)):
            node_of[own] = node
        nodes = node_of[group]
        ends = np.cumsum(np.bincount(nodes, minlength=self.num_partitions))[:-1]
        return np.split(np.argsort(nodes, kind="stable"), ends)


class Partition:
    """The indices of every node's samples, computed at the first use.

    `by_group`: whether each node has whole groups.

    Args:
        partitioner: an `Iid`, a `Natural`, a `Sampled`, or a partitioner of flwr_datasets, whose
            `partition_by` must be "label" or "group"; `Partition` uses a copy of it.
        split: the samples; their classes or groups, for a partitioner that uses them.
        nodes: number of nodes.
        seed: seeds the shuffle before the partitioner, and the draws of `Sampled`.

    Raises:
        TaskError: more nodes than samples or groups, no classes or no groups for a partitioner that
            uses them, or a partition that the partitioner cannot make.
    """

    def __init__(self, partitioner: Any, split: Split, nodes: int, seed: int) -> None:
        total = len(split)
        if isinstance(partitioner, Sampled):
            if not 1 <= partitioner.samples <= total:
                raise TaskError(
                    f"partition.samples={partitioner.samples}: give a number from 1 to {total}, "
                    f"the number of training samples"
                )
        elif nodes > total:
            raise TaskError(
                f"nodes={nodes} is more than the {total} training samples: "
                f"give nodes={total} or fewer, or partition=sampled, whose nodes share samples"
            )
        self._partitioner = partitioner
        self._columns = {
            name: column.cpu().numpy()
            for name, column in (("label", split.labels), ("group", split.groups))
            if column is not None
        }
        by = getattr(partitioner, "_partition_by", None)  # a partitioner of a user may have any
        if by is not None and by not in self._columns:
            raise TaskError(
                f"{type(partitioner).__name__} has partition_by={by}, which the samples lack: "
                f"label needs targets that are classes, and group needs dataset.group=COLUMN, or "
                f"Split(x, y, groups) of your own function; partition=iid needs neither"
            )
        self.by_group = by == "group"
        self._total, self._nodes, self._seed = total, nodes, seed

    def indices(self, node: int) -> Tensor:
        """Return the sample indices of `node` (0..nodes-1), int64 (n,).

        The indices are the same in every process, and do not depend on the order of calls.
        """
        if not 0 <= node < self._nodes:
            raise TaskError(
                f"there is no node {node}: with nodes={self._nodes} they are 0 to {self._nodes - 1}"
            )
        if isinstance(self._partitioner, Sampled):
            return torch.from_numpy(self._partitioner.draw(self._total, self._seed, node))
        # a small alpha gives some nodes few samples
        cure = "give a larger partition.alpha, or " * hasattr(self._partitioner, "_alpha")
        # The user cannot act on their warnings (a repeated draw, an old option of pyarrow).
        made = errors_as("the partition cannot be made", f": {cure}correct its options")
        with warnings.catch_warnings(action="ignore"), made:
            rows: NDArray[np.int64] = self._cut(node)
        if len(rows) == 0:
            raise TaskError(
                f"the partition leaves node {node + 1} without a sample: {cure}give fewer nodes"
            )
        return torch.from_numpy(rows)

    @cached_property
    def _cut(self) -> Callable[[int], Any]:
        """A function that takes a node and returns its indices in the shuffled data set."""
        # Shuffle: partitioners of equal shares take contiguous rows; folders are sorted by class.
        order = np.random.default_rng((self._seed, _SHUFFLE)).permutation(self._total)
        theirs = self._partitioner
        if not isinstance(theirs, Iid | Natural):
            from edgewire.task.label_table import LabelTable

            theirs = copy.deepcopy(theirs)
            theirs.dataset = LabelTable(order, **{k: v[order] for k, v in self._columns.items()})
        if theirs.num_partitions != self._nodes:
            raise TaskError(
                f"the partitioner makes {theirs.num_partitions} partitions for "
                f"nodes={self._nodes}: leave partition.num_partitions as it is and set nodes"
            )
        if isinstance(theirs, Iid):
            return np.array_split(order, self._nodes).__getitem__
        if isinstance(theirs, Natural):
            parts = theirs.cut(self._columns["group"][order], self._seed)
            return [order[part] for part in parts].__getitem__
        return theirs.load_partition  # type: ignore[no-any-return]  # flwr_datasets has no types
