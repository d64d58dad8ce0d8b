"""Compares training of a model divided among two nodes with backpropagation in one process.

    python -m papers.benchmarks.segments                 # JSON on stdout (about twelve minutes)
    python -m papers.benchmarks.segments --overrides model=four_layers strategy.cuts=[1]

The model has eight layers and is cut after the second layer, where the two stages take the most
similar time. It trains with Adam and mini-batches of 256 images of 1x28x28. The modules that
predict gradients have 32 units. The images are scikit-learn's digits, enlarged, so nothing is
downloaded.

* `bare` is a plain PyTorch loop over the whole model in one process. Its threads and its memory are
  configured as in the application (`edgewire.task.process`).
* `one node` and `2 nodes` run the whole application. Every activation and every gradient is a
  payload, which a node sends to the server and the server sends to another node.
* `stage` is one stage alone, without messages.
* `limit` runs both stages at the same time. No pipeline can be faster than its slower stage.

The programs alternate (`papers.benchmarks.timing`) in blocks of `BLOCK` mini-batches. When a block
ends, each node has at most two unfinished mini-batches. Their time is not counted.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from edgewire.client.batches import Samples
from edgewire.client.node import Node
from edgewire.conf.build import data_of, model_of, optimizer_of
from edgewire.conf.load import compose_config, to_config
from edgewire.pipeline.node.stage import Place, Stage
from edgewire.task.flat_model import FlatModel
from edgewire.task.process import configure_process
from edgewire.task.tensors import only
from papers.benchmarks.engine import application
from papers.benchmarks.peers import FOREVER
from papers.benchmarks.timing import Child, Contestant, compare, take_turns

BLOCK = 40  # mini-batches that are timed together
ROUNDS = 2  # blocks that run one after the other
ASKED = 1.15  # target: steps per second, as a multiple of the plain loop's
WORK = ("model=eight_layers", "strategy.cuts=[2]", "strategy.hidden=32")


def settings(algorithm: str, *overrides: str) -> list[str]:
    """Return the command-line overrides of the runs that this benchmark compares."""
    return [
        f"algorithm={algorithm}",
        "dataset=digits",
        "dataset.size=28",
        f"rounds={FOREVER}",
        f"strategy.record_every={BLOCK}",
        "strategy.segment_every=0",
        f"eval_every={FOREVER}",
        *overrides,
    ]


class Bare:
    """Backpropagation of the whole model, with the application's mini-batches and optimiser."""

    def __init__(self, overrides: list[str]) -> None:
        config = to_config(compose_config(overrides))
        data = data_of(config)
        self._samples = Samples(config, data, whole=True)
        self._flat = FlatModel(model_of(config, data))
        self._flat.module.train()
        self._optimizer = optimizer_of(config, [self._flat.parameters])
        self._step = inspect.unwrap(type(self._optimizer).step)
        self._number, self.loss = 0, 0.0

    def block(self) -> None:
        """Take the training steps of one block."""
        for _ in range(BLOCK):
            x, y = map(only, self._samples.batch(Node(0, 1), self._number))
            self._number += 1
            self._flat.drop_grad()
            loss = F.cross_entropy(self._flat.module(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            self._flat.collect_grad()
            self._step(self._optimizer)
            self.loss = loss.item()


class Alone:
    """One stage of the cut model, without messages: its inputs are in memory."""

    def __init__(self, overrides: list[str], segment: int) -> None:
        config = to_config(compose_config(overrides))
        data = data_of(config)
        cuts = tuple(config.strategy["cuts"])
        self._stage = Stage(config, data, Place(segment, cuts))
        for parameter in self._stage.segment.parameters():
            nn.init.normal_(parameter, std=0.01)
        self._stage.main.flat.state[self._stage.main.flat.num_parameters :] = 1
        self._samples = Samples(config, data, whole=True) if segment == 0 else None
        self._given = torch.rand(config.batch_size, *self._stage.part.input)
        self._labels = torch.randint(data.classes, (config.batch_size,))
        self._number, self.loss = 0, 0.0

    def block(self) -> None:
        """Take a block's training steps, for the layers and the module that predicts gradients."""
        stage = self._stage
        for _ in range(BLOCK):
            x, y = self._given, self._labels
            if self._samples is not None:
                x, y = map(only, self._samples.batch(Node(0, 1), self._number))
                x = stage.segment.to_wire(x)
            self._number += 1
            passed = stage.train(x, y, self._number, 1e-3)
            if passed.output is not None:
                stage.learn(passed.output, y, torch.zeros_like(passed.output), 1e-3)


def at_once(stages: Sequence[Child], rounds: int) -> list[float]:
    """Run all stages at the same time; return the seconds of the slowest stage for each block."""
    with ThreadPoolExecutor(len(stages)) as pool:
        taken = list(pool.map(lambda stage: stage(rounds), stages))
    return [max(each) for each in zip(*taken, strict=True)]


def serve(kind: str, overrides: list[str]) -> None:
    """Run the plain loop or one stage in blocks, as `papers.benchmarks.timing` requests them."""
    configure_process()
    loop = Bare(overrides) if kind == "bare" else Alone(overrides, int(kind))
    take_turns(loop.block, lambda: loop.loss)


def measure(cycles: int, extra: list[str], without: list[str]) -> dict[str, Any]:
    """Compare all programs, except those that have a word of `without` in their names."""
    overrides = [*WORK, *extra]
    both = [word for word in overrides if "hidden" not in word]
    synthetic = settings("synthetic_gradients", "nodes=2", *overrides)
    split = settings("split_backprop", "nodes=2", *both)
    whole = settings("split_backprop", "nodes=1", *[word for word in both if "cuts" not in word])
    asynchronous = "strategy.schedule=async"
    piped = "strategy.schedule=pipeline"

    def alone(kind: str, overrides: list[str]) -> Child:
        return Child(
            [sys.executable, "-m", "papers.benchmarks.segments", "serve", kind, *overrides]
        )

    with ExitStack() as stack:
        stages = [stack.enter_context(alone(kind, synthetic)) for kind in "01"]
        candidates: dict[str, Child] = {
            "bare": alone("bare", whole),
            "stage 0": alone("0", synthetic),
            "stage 1": alone("1", synthetic),
            "one node, backpropagation": application(1, whole),
            "2 nodes, synthetic, async": application(2, [*synthetic, asynchronous]),
            "2 nodes, synthetic, pipeline": application(2, synthetic),
            "2 nodes, backpropagation": application(2, split),
            **{
                f"2 nodes, GPipe, {m} micro-batches": application(
                    2, [*split, piped, f"strategy.micro_batches={m}"]
                )
                for m in (2, 4)
            },
        }
        children: dict[str, Contestant] = {
            name: stack.enter_context(child)
            for name, child in candidates.items()
            if not any(word in name for word in without)
        }
        children["limit, both stages at once"] = partial(at_once, stages)
        result: dict[str, Any] = compare(children, cycles=cycles, rounds=ROUNDS, warmup=1)
    for row in result.values():
        row["ms a step"] = round(row["seconds"] / BLOCK * 1e3, 2)
        row["steps a second, times bare"] = round(1 / row.get("ratio", 1), 3)
    reached = result["2 nodes, synthetic, async"]["steps a second, times bare"]
    result["unmet"] = [] if reached >= ASKED else [f"synthetic, async: {reached}, not {ASKED}"]
    return result


def main() -> None:
    """Run the comparison and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--overrides", nargs="*", default=[], help="overrides, for all contestants")
    parser.add_argument(
        "--without", nargs="*", default=[], help="parts of the names that are left out"
    )
    options = parser.parse_args()
    print(json.dumps(measure(options.cycles, options.overrides, options.without), indent=2))


if __name__ == "__main__":
    serve(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["serve"] else main()
