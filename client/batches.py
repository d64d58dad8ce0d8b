"""The samples of each node: those that it trains on or holds back, and its mini-batches."""

import functools
from typing import Any

import torch
from torch import Tensor

from edgewire.client.node import Node
from edgewire.conf.build import device_of, partition_of
from edgewire.conf.schema import Config
from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError
from edgewire.task.rng import stream_seed
from edgewire.task.steps import Batch
from edgewire.task.tensors import Tensors, leaves, mapped, taken

PREPARED_BYTES = 256 << 20  # bytes of prepared samples that a process caches for its nodes


class Samples:
    """The samples of all nodes of a process.

    `whole`: one node has the whole training set, so no partition is made. `folder`: the data folder
    of a real device, which has no partition of a common training set.
    """

    def __init__(
        self, config: Config, data: Data, folder: str | None = None, whole: bool = False
    ) -> None:
        self.config = config
        self.data = data
        self.whole = whole or folder is not None
        self.device = device_of(config)
        # With one node, preparing a mini-batch takes 0.3 ms, so a cache would only use memory.
        self._room = 0 if whole else PREPARED_BYTES
        self._prepared: dict[tuple[int, bool], Batch] = {}  # the nodes that came first, see `of`
        self._parts: dict[tuple[int, bool], Tensor] = {}
        # For each node: its epoch, and the order of its training samples there, int64 (s,).
        self._orders: dict[int, tuple[int, Tensor]] = {}

    @functools.cached_property
    def partition(self) -> Any:
        """The partition of the training set over the nodes; it is made at the first use."""
        return partition_of(self.config, self.data)

    def batch(self, node: Node, number: int) -> Batch:
        """Return the node's mini-batch `number`, from 0: B inputs and B targets.

        The mini-batch depends only on (seed, node, number). Each epoch has a new order. All
        mini-batches are full: the remaining samples of an epoch are left out.
        """
        chosen, part = self._chosen(node, number), self._part(node, held_back=False)
        known = (node.index, False) in self._prepared
        if not known and len(part) * self._sample_bytes > self._room:
            return self._prepared_samples(part[chosen])
        inputs, targets = self.of(node, held_back=False)
        chosen = chosen.to(self.device)
        return taken(inputs, chosen), taken(targets, chosen)

    def raw(self, node: Node, number: int) -> Tensors:
        """Return the inputs of the node's mini-batch `number` as the data set holds them."""
        part = self._part(node, held_back=False)
        return taken(self.data.train.inputs, part[self._chosen(node, number)])

    def _chosen(self, node: Node, number: int) -> Tensor:
        """Return the positions of a mini-batch's samples in the node's part, int64 (k,)."""
        total = self._part(node, held_back=False).shape[0]  # `len` takes four calls
        size = min(self.config.batch_size, total)
        epoch, position = divmod(number, total // size)
        known, order = self._orders.get(node.index, (-1, None))
        if order is None or known != epoch:
            order = torch.randperm(total, generator=self.generator(node, epoch))
            self._orders[node.index] = epoch, order
        return order[position * size : (position + 1) * size]

    def of(self, node: Node, *, held_back: bool) -> Batch:
        """Return the node's inputs, as its model takes them, and its targets; read only.

        `held_back`: True for the samples held back from training, False for the others. The node
        holds back the last share `dataset.holdout` of its samples, in the partition's order.
        """
        key = (node.index, held_back)
        if (samples := self._prepared.get(key)) is None:
            samples = self._prepared_samples(self._part(node, held_back))
            if (size := _bytes_of(samples)) <= self._room:
                self._prepared[key] = samples
                self._room -= size
        return samples

    def _part(self, node: Node, held_back: bool) -> Tensor:
        """Return the indices of the node's training or held-back samples, int64 (s,).

        Raises `TaskError` if the node has no such samples.
        """
        key = (node.index, held_back)
        if (found := self._parts.get(key)) is not None:
            return found
        if self.whole:
            indices = torch.randperm(len(self.data.train), generator=self.generator(node, 0))
        else:
            indices = self.partition.indices(node.index)
        kept = len(indices) - int(len(indices) * self.config.dataset.holdout)
        found = indices[kept:] if held_back else indices[:kept]
        if not len(found):
            cure = "a larger" if held_back else "fewer nodes or less"
            raise TaskError(f"this node has no samples for that: give {cure} dataset.holdout")
        self._parts[key] = found
        return found

    def _prepared_samples(self, indices: Tensor) -> Batch:
        split = self.data.train.taken(indices)
        targets = mapped(lambda tensor: tensor.to(self.device), split.targets)
        return self.data.prepared(split.inputs, self.config.device), targets

    @functools.cached_property
    def _sample_bytes(self) -> int:
        """The bytes of one prepared sample."""
        return _bytes_of(self._prepared_samples(torch.zeros(1, dtype=torch.int64)))

    def generator(self, node: Node, number: int) -> torch.Generator:
        """Return a node's random generator for the round or epoch `number`."""
        seed = stream_seed(self.config.seed, node.index, number)
        return torch.Generator().manual_seed(seed)


def _bytes_of(samples: Batch) -> int:
    return sum(tensor.nbytes for part in samples for tensor in leaves(part))
