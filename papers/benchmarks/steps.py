"""Compares the time of a step of synchronous SGD with a plain PyTorch loop and with Ray.

    python -m papers.benchmarks.steps               # everything, JSON on stdout (about six minutes)
    python -m papers.benchmarks.steps --no-ray --model mlp --algorithm dgc --cycles 20

Four nodes train LeNet-5 or an MLP with mini-batches of 64 images of 1x28x28. The images are
scikit-learn's digits, enlarged, so nothing is downloaded. The algorithms are the presets sgd, esgd
and dgc at a constant learning rate. dgc sends 0.1 % of the entries from the first step on.

The local engine runs the whole application: ServerApp, ClientApp, records, and a message in each
direction for every node and step. The plain loop does the same computation without messages, and
its losses on the test images are equal. The programs alternate (`papers.benchmarks.timing`). Ray's
rounds are measured between two blocks of the local engine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from edgewire.compression.base import Indices, Memory
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.conf.build import data_of, model_of, partition_of
from edgewire.conf.check import codec_of, downlink_of
from edgewire.conf.load import compose_config, to_config
from edgewire.conf.schema import Config
from edgewire.task.process import configure_process
from edgewire.task.rng import stream_seed
from edgewire.task.tensors import only
from papers.benchmarks.engine import application, on_ray
from papers.benchmarks.peers import FOREVER, add_losses
from papers.benchmarks.timing import Child, compare, take_turns

MODELS = {"lenet5": 10, "mlp": 20}  # rounds per block
ALGORITHMS: dict[str, list[str]] = {
    "sgd": [],
    "esgd": ["compression.drop=0.5"],
    "dgc": ["compression.sparsity=0.999", "compression.warmup_steps=0", "lr=0.02"],
}
OURS, OURS_2, RAY = "local, 1 worker", "local, 2 workers", "ray, 2 actors"
LIMITS = {  # model -> the largest "ours / bare" and the smallest "ray / ours"
    "lenet5": {"ours / bare": 1.25, "ray / ours": 4.0},
    "mlp": {"ray / ours": 12.0},
}
RAY_ROUNDS = 12  # the first two are not counted


def settings(model: str, algorithm: str, rounds: int = FOREVER) -> list[str]:
    """Return the command-line overrides of the runs that this benchmark compares."""
    return [
        f"algorithm={algorithm}",
        f"model={model}",
        "dataset=digits",
        "dataset.size=28",
        "nodes=4",
        "batch_size=64",
        "schedule=constant",
        f"rounds={rounds}",
        f"eval_every={FOREVER}",
        *ALGORITHMS[algorithm],
    ]


class Worker:
    """A node of the plain loop: its normalised images, and its compressor's residual."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int, seed: tuple[int, int]) -> None:
        self._images, self._labels, self._batch, self._seed = images, labels, batch, seed
        self._order = torch.empty(0)
        self.memory: Memory = {}
        self.sent: Indices | None = None  # the entries that its last payload selected

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the images and labels of a step (from 0), the same as in the application."""
        epoch, position = divmod(step, len(self._labels) // self._batch)
        if position == 0:
            rng = torch.Generator().manual_seed(stream_seed(*self._seed, epoch))
            self._order = torch.randperm(len(self._labels), generator=rng)
        chosen = self._order[position * self._batch : (position + 1) * self._batch]
        return self._images.index_select(0, chosen), self._labels.index_select(0, chosen)


class Bare:
    """The plain PyTorch loop in one process, without Flower, messages or an engine.

    The parameters of the module are views of one vector. The loop calls the codecs directly: one
    codec for the gradients of the nodes, and one for the average that the server would send back.
    """

    def __init__(self, config: Config) -> None:
        data = data_of(config)
        self.model = model_of(config, data)
        self.vector = parameters_to_vector(self.model.parameters()).detach()
        vector_to_parameters(self.vector, self.model.parameters())  # views from here on
        self._parameters = list(self.model.parameters())
        names = tuple(name for name, _ in self.model.named_parameters())
        shapes = tuple(tuple(p.shape) for p in self._parameters)
        self._layout = Layout(names, shapes, ("float32",) * len(names))
        self._codec, self._downlink = codec_of(config), downlink_of(config)
        images = only(data.prepared(data.train.inputs))
        self._test = only(data.prepared(data.test.inputs)), only(data.test.targets)
        partition = partition_of(config, data)
        labels = only(data.train.targets)
        parts = [partition.indices(node) for node in range(config.nodes)]
        self._workers = [
            Worker(images[part], labels[part], config.batch_size, (config.seed, node))
            for node, part in enumerate(parts)
        ]
        self._total = np.zeros(self._layout.size, dtype=np.float32)
        self._mark = np.zeros(self._layout.size, dtype=np.bool_)
        self._lr, self._seed, self._step = np.float32(config.lr), config.seed, 0

    def test_loss(self) -> float:
        """Return the mean loss of the model on the test images."""
        images, labels = self._test
        with torch.no_grad():
            return F.cross_entropy(self.model(images), labels).item()

    def step(self) -> None:
        """Take one step with the average of all nodes' compressed gradients."""
        self._total.fill(0)
        self._mark.fill(False)
        dense = False
        for node, worker in enumerate(self._workers):
            gradient, loss = self._gradient(*worker.batch(self._step))
            indices, values = self._sent(node, worker, gradient, loss)
            if indices is None:
                dense = True
                self._total += values
            else:
                self._total[indices] += values
                self._mark[indices] = True
        self._apply(None if dense else np.flatnonzero(self._mark).astype(np.uint32))
        self._step += 1

    def _gradient(self, x: Tensor, y: Tensor) -> tuple[Any, float]:
        for p in self._parameters:
            p.grad = None
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        flat = torch.cat([p.grad.flatten() for p in self._parameters if p.grad is not None])
        return flat.numpy(), loss.item()

    def _sent(self, node: int, worker: Worker, gradient: Any, loss: float) -> tuple[Any, Any]:
        """Encode a node's gradient; return the indices and values that the server would decode."""
        payload = self._codec.encode(
            gradient,
            self._layout,
            memory=worker.memory,
            seed=(self._seed << 96) | (node << 32) | (self._step + 1),
            loss=loss,
            as_before=self._step > 0,
        )
        update = decode_update(payload, self._layout, before=worker.sent)
        worker.sent = update.selected
        return update.indices, update.values

    def _apply(self, union: Indices | None) -> None:
        """Encode and decode the mean gradient with the downlink's codec; take a step with it.

        `union`: the indices that any node has sent; None: all entries.
        """
        values = (self._total if union is None else self._total[union]) / np.float32(
            len(self._workers)
        )
        assert self._downlink is not None
        payload = self._downlink.encode_sparse(union, values, self._layout, seed=self._step)
        update = decode_update(payload, self._layout)
        at: Indices | slice = slice(None) if update.indices is None else update.indices
        self.vector.numpy()[at] -= self._lr * update.values


def serve(overrides: list[str]) -> None:
    """Run the plain loop in blocks of rounds, as `papers.benchmarks.timing` requests them."""
    configure_process()
    loop = Bare(to_config(compose_config(overrides)))
    take_turns(loop.step, loop.test_loss)


def bare(overrides: list[str]) -> Child:
    """Return the plain loop in a process that lasts for the whole comparison."""
    return Child([sys.executable, "-m", "papers.benchmarks.steps", "serve", *overrides])


def measure(model: str, algorithm: str, cycles: int, ray: bool) -> dict[str, Any]:
    """Compare the plain loop with the local engine, then the local engine with Ray."""
    rounds, overrides = MODELS[model], settings(model, algorithm)
    with ExitStack() as stack:
        candidates = {"bare": bare(overrides), OURS: application(1, overrides)}
        candidates[OURS_2] = application(2, overrides)
        children = {name: stack.enter_context(child) for name, child in candidates.items()}
        result: dict[str, Any] = compare(children, cycles=cycles, rounds=rounds, warmup=rounds)
        add_losses(result, children)
        result["ours / bare"] = result[OURS]["ratio"]
        if ray:
            around = {name: children[name](rounds) for name in (OURS, OURS_2)}
            seconds = on_ray(settings(model, algorithm, RAY_ROUNDS))[2:]
            around = {name: block + children[name](rounds) for name, block in around.items()}
            one, two = (median(seconds) / median(around[name]) for name in (OURS, OURS_2))
            result[RAY] = {"seconds": round(median(seconds), 4), "rounds": len(seconds)}
            result |= {"ray / ours": round(one, 2), "ray / ours, 2 workers": round(two, 2)}
    return result


def unmet(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the targets that are not met, and losses that did not fall or are not equal."""
    found = []
    for model, algorithms in results.items():
        for algorithm, result in algorithms.items():
            here = f"{model}, {algorithm}: "
            for name, limit in LIMITS[model].items():
                ratio = result.get(name)
                if ratio is not None and (
                    ratio > limit if name == "ours / bare" else ratio < limit
                ):
                    found.append(f"{here}{name} is {ratio}, not {limit}")
            losses = [
                row["loss"] for row in result.values() if isinstance(row, dict) and "loss" in row
            ]
            if any(last >= first for (_, first), (_, last) in losses):
                found.append(f"{here}a loss did not fall")
            if any(loss != losses[0] for loss in losses):
                found.append(f"{here}the losses differ")
    return found


def main() -> None:
    """Run the requested comparisons and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=8)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--algorithm", choices=ALGORITHMS)
    options = parser.parse_args()
    if options.cycles < 2:
        parser.error("--cycles must be at least 2: the quartiles of one ratio are unknown")
    start = time.perf_counter()
    results: dict[str, dict[str, Any]] = {}
    for model in [options.model] if options.model else MODELS:
        results[model] = {}
        for algorithm in [options.algorithm] if options.algorithm else ALGORITHMS:
            results[model][algorithm] = measure(
                model, algorithm, options.cycles, not options.no_ray
            )
    minutes = round((time.perf_counter() - start) / 60, 1)
    print(json.dumps({**results, "unmet": unmet(results), "minutes": minutes}, indent=2))


if __name__ == "__main__":
    serve(sys.argv[2:]) if sys.argv[1:2] == ["serve"] else main()
