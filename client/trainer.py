"""Local training: what a node does with the model between two messages."""

from __future__ import annotations

import functools
import inspect
import math
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app.typing import MetricRecordValues
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from client.node import Node
from compression.flower import CompressionMod
from compression.layout import Layout
from compression.statistics import trained_entries
from conf import Config
from conf.build import codec_of, data_of, device_of, model_of, optimizer_of, partition_of
from task.draws import OwnStream, stream_seed
from task.flat import FlatModel
from task.steps import batches, evaluate, prepare

Vector = NDArray[np.float32]
Samples = tuple[Tensor, Tensor]
Metrics = dict[str, MetricRecordValues]
PREPARED_BYTES = 256 << 20  # how much prepared data a process keeps for the nodes it meets again


class Order(NamedTuple):
    """In which order a node's samples make an epoch's mini-batches."""

    epoch: int
    samples: Tensor  # int64 (s,): positions among the node's prepared ones, or in the training set
    prepared: bool  # which of the two


class Recent:
    """The samples used last, up to a number of bytes."""

    def __init__(self, capacity: int = PREPARED_BYTES) -> None:
        self._kept: OrderedDict[tuple[int, bool], Samples] = OrderedDict()
        self._left = capacity

    def get(self, key: tuple[int, bool]) -> Samples | None:
        """Return what is kept under `key`, which is then the last to go."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes more would fit beside what is kept."""
        return size <= self._left

    def put(self, key: tuple[int, bool], samples: Samples) -> Samples:
        """Keep samples if they fit, in place of those unused for longest; return them."""
        size = sum(t.nbytes for t in samples)
        while self._kept and size > self._left:
            _, oldest = self._kept.popitem(last=False)
            self._left += sum(t.nbytes for t in oldest)
        if size <= self._left:
            self._kept[key] = samples
            self._left -= size
        return samples


class Trainer:
    """Model, data and optimiser of one configuration, shared by all nodes of a process.

    What differs between nodes comes with each call; nothing but caches is kept between calls, so
    results do not depend on which process serves which node, or in which order.
    """

    def __init__(self, config: Config, folder: str | None = None) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.folder = folder
        self.device = device_of(config)
        self.data = data_of(config, folder)
        self.flat = FlatModel(model_of(config, self.data), config.device)
        self.optimizer = optimizer_of(config, [self.flat.parameters])
        # torch's own step without its wrapping (profiler, hooks): 0.4 of its time on a small model
        self._step = inspect.unwrap(type(self.optimizer).step)
        self.loss = nn.CrossEntropyLoss()
        self.single = not any(isinstance(m, _BatchNorm) for m in self.flat.module.modules())
        self._prepared = Recent()
        names = self.flat.names
        self.layout = Layout(names, self.flat.shapes, ("float32",) * len(names))
        self.mod = CompressionMod(codec_of(config), self.layout, config.seed)
        self._orders: dict[int, Order] = {}  # of each node

    @functools.cached_property
    def partition(self) -> Any:
        """The training set's spread over the nodes (made when the first node asks)."""
        return partition_of(self.config, self.data)

    def train(
        self, node: Node, start: Vector, *, server_round: int, lr: float, proximal_mu: float = 0.0
    ) -> tuple[Vector, Metrics]:
        """Train from the model `start`, float32 (n,); return the new model and metrics.

        The model returned is a view that the next call overwrites. Randomness comes from
        (seed, node, round) alone. `proximal_mu`: FedProx's pull towards `start` (Li et al. 2020,
        equation 2).
        """
        flat, optimizer = self.flat, self.optimizer
        images, labels = self._samples(node, held_back=False)
        flat.load(start)
        if not flat.module.training:
            flat.module.train()
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = lr
        generator = self._generator(node, server_round)
        anchor = flat.parameters.clone() if proximal_mu else None
        total, steps = torch.zeros((), device=self.device), 0
        with self._layers_draws(node, server_round):
            for x, y in self._batches(images, labels, generator):
                flat.zero_grad()
                loss = self.loss(flat.module(x), y)
                loss.backward()
                if anchor is not None and (gradient := flat.parameters.grad) is not None:
                    gradient.add_(flat.parameters - anchor, alpha=proximal_mu)
                self._step(optimizer)
                total += loss.detach()
                steps += 1
        metrics: Metrics = {
            "loss": total.item() / steps,
            "num-examples": len(labels),
            "num-steps": steps,
        }
        return flat.state.detach().cpu().numpy(), metrics

    def gradient(self, node: Node, model: Vector, *, number: int) -> tuple[Vector, Metrics]:
        """Return the gradient of the node's mini-batch `number` (from 0) at `model`, float32 (n,).

        Entries of BatchNorm's statistics hold their new values, those of other buffers their
        change, with the sign of a gradient. The vector is a view that the next call overwrites. The
        mini-batch comes from (seed, node, number) alone: epochs in an order of their own, without
        the rest that fills no batch.
        """
        flat = self.flat
        flat.load(model)
        if not flat.module.training:
            flat.module.train()
        x, y = self._batch(node, number)
        flat.drop_grad()
        with self._layers_draws(node, number):
            loss = self.loss(flat.module(x), y)
            loss.backward()
        metrics: Metrics = {"loss": loss.item(), "num-examples": len(y), "num-steps": 1}
        gradient = flat.collect_grad().cpu().numpy()
        if len(gradient) < len(model):
            rest = flat.state[len(gradient) :].detach().cpu().numpy()
            gradient = np.concatenate([gradient, rest])
            others = slice(flat.num_parameters, trained_entries(self.layout))
            gradient[others] = model[others] - gradient[others]
        return gradient, metrics

    def _batch(self, node: Node, number: int) -> Samples:
        order = self._orders.get(node.index)
        total = len(self._part(node, held_back=False)) if order is None else len(order.samples)
        size = min(self.config.batch_size, total)
        epoch, position = divmod(number, total // size)
        if order is None or order.epoch != epoch:
            self._orders[node.index] = order = self._shuffled(node, epoch)
        chosen = order.samples[position * size : (position + 1) * size]
        if not order.prepared:
            return self._prepared_samples(chosen)
        images, labels = self._samples(node, held_back=False)
        return images.index_select(0, chosen), labels.index_select(0, chosen)

    def _shuffled(self, node: Node, epoch: int) -> Order:
        """Return an epoch's order: among the prepared samples if they, too, can be kept."""
        part = self._part(node, held_back=False)
        order = torch.randperm(len(part), generator=self._generator(node, epoch))
        size = 4 * len(part) * math.prod(self.data.train.images.shape[1:])
        if self._prepared.get((node.index, False)) or self._prepared.has_room(size + part.nbytes):
            return Order(epoch, order.to(self.device), prepared=True)
        return Order(epoch, part[order], prepared=False)

    def evaluate(self, node: Node, state: Vector) -> Metrics:
        """Return `Evaluation`'s figures and the number of samples of the node's evaluation."""
        images, labels = self._samples(node, held_back=self.config.dataset.holdout > 0)
        self.flat.load(state)
        with OwnStream(self.device, stream_seed(self.config.seed, node.index)):
            measured = evaluate(self.flat.module, images, labels)
        return {**measured._asdict(), "num-examples": len(labels)}

    def _samples(self, node: Node, held_back: bool) -> Samples:
        """Return the node's images, float32 (s, C, H, W), and labels, int64 (s,): read only.

        The last `dataset.holdout` of a node's samples (in the partition's own, shuffled order)
        are held back from training.
        """
        key = (node.index, held_back)
        if (samples := self._prepared.get(key)) is None:
            samples = self._prepared.put(key, self._prepare(node, held_back))
        return samples

    def _prepare(self, node: Node, held_back: bool) -> Samples:
        return self._prepared_samples(self._part(node, held_back))

    def _part(self, node: Node, held_back: bool) -> Tensor:
        """Return which samples the node trains on, or holds back, int64 (s,)."""
        indices = self._indices(node)
        kept = len(indices) - int(len(indices) * self.config.dataset.holdout)
        indices = indices[kept:] if held_back else indices[:kept]
        if not len(indices):
            raise ValueError(f"node {node.index} has no samples; give fewer nodes or less holdout")
        return indices

    def _prepared_samples(self, indices: Tensor) -> Samples:
        split, data = self.data.train, self.data
        # index_select takes a tenth of the time of images[indices]
        images = split.images.index_select(0, indices)
        labels = split.labels.index_select(0, indices)
        return prepare(images, data.mean, data.std, self.config.device), labels.to(self.device)

    def _indices(self, node: Node) -> Tensor:
        """Return which samples of the training split are the node's, int64 (s,)."""
        if self.folder is None:
            indices: Tensor = self.partition.indices(node.index)
            return indices
        total = len(self.data.train.labels)
        return torch.randperm(total, generator=self._generator(node, 0))

    def _generator(self, node: Node, number: int) -> torch.Generator:
        """Return the node's own generator for a round or an epoch."""
        seed = stream_seed(self.config.seed, node.index, number)
        return torch.Generator().manual_seed(seed)

    def _layers_draws(self, node: Node, number: int) -> OwnStream:
        """Return the context in which the model draws (dropout, say) from the node's own stream.

        Always: no look at a model shows all that draws (`F.dropout`, `nn.LSTM(dropout=)`).
        """
        return OwnStream(self.device, stream_seed(self.config.seed, node.index, number) ^ 1)

    def _batches(
        self, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield shuffled mini-batches: whole epochs, or exactly `local_steps` of them."""
        config = self.config
        limit = config.local_steps
        epochs = repeat(None) if limit is not None else repeat(None, config.local_epochs)
        size, single = config.batch_size, self.single
        every = (batches(images, labels, size, generator, single=single) for _ in epochs)
        return islice(chain.from_iterable(every), limit)


_trainers: dict[tuple[int, str | None], Trainer] = {}


def trainer_for(config: Config, folder: str | None = None) -> Trainer:
    """Return this process's trainer for a configuration (kept: building one takes seconds)."""
    key = (id(config), folder)  # `load_config` returns the same object for the same text
    if key not in _trainers:
        _trainers.clear()
        _trainers[key] = Trainer(config, folder)
    return _trainers[key]
