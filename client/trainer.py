"""Local training: what a node does with the model between two messages."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.node import Node
from compression.flower import CompressionMod
from compression.layout import Layout
from conf import Config
from conf.build import codec_of, data_of, model_of, optimizer_of, partition_of
from task.flat import FlatModel
from task.steps import batches, evaluate, prepare

Vector = NDArray[np.float32]


class Trainer:
    """Model, data and optimiser of one configuration, shared by all nodes of a process.

    What differs between nodes comes with each call; nothing is kept between calls, so results
    do not depend on which process serves which node, or in which order.
    """

    def __init__(self, config: Config, folder: str | None = None) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.folder = folder
        self.device = torch.device(config.device)
        self.data = data_of(config, folder)
        self.flat = FlatModel(model_of(config, self.data), config.device)
        self.optimizer = optimizer_of(config, [self.flat.parameters])
        self.loss = nn.CrossEntropyLoss()
        self.has_dropout = any(isinstance(m, nn.Dropout) for m in self.flat.module.modules())
        layout = Layout(self.flat.names, self.flat.shapes, ("float32",) * len(self.flat.names))
        self.mod = CompressionMod(codec_of(config), layout, config.seed)

    @functools.cached_property
    def partition(self) -> Any:
        """The training set's spread over the nodes (made when the first node asks)."""
        return partition_of(self.config, self.data)

    def train(
        self, node: Node, start: Vector, *, server_round: int, lr: float, proximal_mu: float = 0.0
    ) -> tuple[Vector, dict[str, int | float]]:
        """Train from the model `start`, float32 (n,); return the new model and metrics.

        The model returned is a view that the next call overwrites. Randomness comes from
        (seed, node, round) alone. `proximal_mu`: FedProx's pull towards `start` (Li et al. 2020,
        equation 2).
        """
        flat, optimizer = self.flat, self.optimizer
        images, labels = self._samples(node, held_back=False)
        flat.load(start)
        flat.module.train()
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = lr
        generator = torch.Generator().manual_seed(_mix(self.config.seed, node.index, server_round))
        if self.has_dropout:  # the only layers that draw from torch's global stream
            torch.manual_seed(_mix(self.config.seed, node.index, server_round) ^ 1)
        anchor = flat.parameters.detach().clone() if proximal_mu else None
        total, steps = torch.zeros((), device=self.device), 0
        for x, y in self._batches(images, labels, generator):
            flat.zero_grad()
            loss = self.loss(flat.module(x), y)
            loss.backward()
            if anchor is not None:
                flat.parameters.grad.add_(flat.parameters.detach() - anchor, alpha=proximal_mu)
            optimizer.step()
            total += loss.detach()
            steps += 1
        metrics = {"loss": total.item() / steps, "num-examples": len(labels), "num-steps": steps}
        return flat.state.detach().cpu().numpy(), metrics

    def evaluate(self, node: Node, state: Vector) -> dict[str, int | float]:
        """Return loss, accuracy (0 to 1) and the number of samples of the node's evaluation."""
        images, labels = self._samples(node, held_back=self.config.dataset.holdout > 0)
        self.flat.load(state)
        loss, accuracy = evaluate(self.flat.module, images, labels)
        return {"loss": loss, "accuracy": accuracy, "num-examples": len(labels)}

    def _samples(self, node: Node, held_back: bool) -> tuple[Tensor, Tensor]:
        """Return the node's images, float32 (s, C, H, W), and labels, int64 (s,).

        The last `dataset.holdout` of a node's samples (in the partition's own, shuffled order)
        are held back from training.
        """
        indices = self._indices(node)
        kept = len(indices) - int(len(indices) * self.config.dataset.holdout)
        indices = indices[kept:] if held_back else indices[:kept]
        if not len(indices):
            raise ValueError(f"node {node.index} has no samples; give fewer nodes or less holdout")
        split, data = self.data.train, self.data
        images = prepare(split.images[indices], data.mean, data.std, self.config.device)
        return images, split.labels[indices].to(self.device)

    def _indices(self, node: Node) -> Tensor:
        """Return which samples of the training split are the node's, int64 (s,)."""
        if self.folder is None:
            indices: Tensor = self.partition.indices(node.index)
            return indices
        generator = torch.Generator().manual_seed(_mix(self.config.seed, node.index, 0))
        return torch.randperm(len(self.data.train.labels), generator=generator)

    def _batches(
        self, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield shuffled mini-batches: whole epochs, or exactly `local_steps` of them."""
        config = self.config
        limit = config.local_steps
        epochs = repeat(None) if limit is not None else repeat(None, config.local_epochs)
        every = (
            batch for _ in epochs for batch in batches(images, labels, config.batch_size, generator)
        )
        return islice(every, limit)


def _mix(*parts: int) -> int:
    """Return a 63-bit seed for a random stream named by integers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


_trainers: dict[tuple[int, str | None], Trainer] = {}


def trainer_for(config: Config, folder: str | None = None) -> Trainer:
    """Return this process's trainer for a configuration (kept: building one takes seconds)."""
    key = (id(config), folder)  # `load_config` returns the same object for the same text
    if key not in _trainers:
        _trainers.clear()
        _trainers[key] = Trainer(config, folder)
    return _trainers[key]
