"""The samples of each node: those that it trains on or holds back, and its mini-batches."""

import functools
from typing import Any, NamedTuple

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


class Order(NamedTuple):
    """The order in which a node trains on its samples in one epoch."""

    epoch: int
    samples: Tensor  # int64 (s,): positions in the node's prepared samples, or in the training set
    prepared: bool  # True: positions in the prepared samples; False: in the training set


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
        self._orders: dict[int, Order] = {}  # of each node

    @functools.cached_property
    def partition(self) -> Any:
        """The partition of the training set over the nodes; it is made at the first use."""
        return partition_of(self.config, self.data)

    def batch(self, node: Node, number: int) -> Batch:
        """Return the node's mini-batch `number`, from 0: B inputs and B targets.

        The mini-batch depends only on (seed, node, number). Each epoch has a new order. All
        mini-batches are full: the remaining samples of an epoch are left out.
        """
        chosen, prepared = self._chosen(node, number)
        if not prepared:
            return self._prepared_samples(chosen)
        inputs, targets = self.of(node, held_back=False)
        return taken(inputs, chosen), taken(targets, chosen)

    def raw(self, node: Node, number: int) -> Tensors:
        """Return the inputs of the node's mini-batch `number` as the data set holds them."""
        chosen, prepared = self._chosen(node, number)
        if prepared:
            chosen = self._part(node, held_back=False)[chosen.cpu()]
        return taken(self.data.train.inputs, chosen)

    def _chosen(self, node: Node, number: int) -> tuple[Tensor, bool]:
        """Return the positions of a mini-batch's samples, int64 (k,), and what they count.

        True: the node's own samples, which the cache holds as the model takes them (prepared).
        False: the samples of the whole training set.
        """
        order = self._orders.get(node.index)
        samples = self._part(node, held_back=False) if order is None else order.samples
        total = samples.shape[0]  # `len` takes four calls
        size = min(self.config.batch_size, total)
        epoch, position = divmod(number, total // size)
        if order is None or order.epoch != epoch:
            self._orders[node.index] = order = self._shuffled(node, epoch)
        return order.samples[position * size : (position + 1) * size], order.prepared

    def _shuffled(self, node: Node, epoch: int) -> Order:
        """Return a new random order of a node's training samples for an epoch.

        The order holds positions in the prepared samples if the cache has room for these samples.
        Otherwise it holds positions in the training set.
        """
        part = self._part(node, held_back=False)
        order = torch.randperm(len(part), generator=self.generator(node, epoch))
        size = len(part) * self._sample_bytes
        if (node.index, False) in self._prepared or size <= self._room:
            return Order(epoch, order.to(self.device), prepared=True)
        return Order(epoch, part[order], prepared=False)

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
        indices = self._indices(node)
        kept = len(indices) - int(len(indices) * self.config.dataset.holdout)
        indices = indices[kept:] if held_back else indices[:kept]
        if not len(indices):
            cure = (
                "a larger dataset.holdout" if held_back else "fewer nodes or less dataset.holdout"
            )
            raise TaskError(f"this node has no samples for that: give {cure}")
        return indices

    def _prepared_samples(self, indices: Tensor) -> Batch:
        split = self.data.train.taken(indices)
        targets = mapped(lambda tensor: tensor.to(self.device), split.targets)
        return self.data.prepared(split.inputs, self.config.device), targets

    @functools.cached_property
    def _sample_bytes(self) -> int:
        """The bytes of one prepared sample."""
        return _bytes_of(self._prepared_samples(torch.zeros(1, dtype=torch.int64)))

    def _indices(self, node: Node) -> Tensor:
        """Return the indices of the node's samples in the training split, int64 (s,)."""
        if not self.whole:
            indices: Tensor = self.partition.indices(node.index)
            return indices
        total = len(self.data.train)
        return torch.randperm(total, generator=self.generator(node, 0))

    def generator(self, node: Node, number: int) -> torch.Generator:
        """Return a node's random generator for the round or epoch `number`."""
        seed = stream_seed(self.config.seed, node.index, number)
        return torch.Generator().manual_seed(seed)


def _bytes_of(samples: Batch) -> int:
    return sum(tensor.nbytes for part in samples for tensor in leaves(part))
