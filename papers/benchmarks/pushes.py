"""Compares the time of an asynchronous update ("push") with the time of its gradient alone.

    python -m papers.benchmarks.pushes                    # JSON on stdout (about two minutes)
    python -m papers.benchmarks.pushes --algorithm asgd --cycles 10
    python -m papers.benchmarks.pushes --memory   # after 5,000 and 250,000 updates (six minutes)

The setting is AdaComp's: 200 nodes, mini-batches of ten images of 1x28x28, the CNN of 211,690
parameters, c = 0.01. The images are scikit-learn's digits, enlarged, so nothing is downloaded.

The local engine runs the whole application: a message with the model to a node, its gradient,
selection, payload, a reply, the staleness, the step. The plain loop only computes gradients of
mini-batches of the same size. Two workers cannot be faster than two plain loops at the same time.

The programs alternate (`papers.benchmarks.timing`) in blocks of `BLOCK` updates. A block has many
updates, because the engine computes gradients in bursts.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import functional as F

from edgewire.conf.build import data_of, model_of
from edgewire.conf.load import compose_config, to_config
from edgewire.conf.schema import Config
from edgewire.task.process import configure_process
from edgewire.task.tensors import only
from papers.benchmarks.engine import application
from papers.benchmarks.peers import FOREVER
from papers.benchmarks.timing import AtOnce, Child, Contestant, compare, take_turns

BLOCK = 200  # updates that are timed together
ROUNDS = 2  # blocks that run one after the other
LIMIT = 1.25  # target: the largest ratio to the gradient's time, with one worker
PAPER = 250_000  # the paper's updates; the target with two workers is 15 minutes


def settings(algorithm: str) -> list[str]:
    """Return the command-line overrides of the runs that this benchmark compares."""
    return [
        f"algorithm={algorithm}",
        "model=adacomp_cnn",
        "dataset=digits",
        "dataset.size=28",
        "partition=sampled",
        f"strategy.pushes={FOREVER}",
        f"strategy.record_every={BLOCK}",
        f"eval_every={FOREVER}",
    ]


class Bare:
    """The plain loop: gradients of random mini-batches, one after the other."""

    def __init__(self, config: Config) -> None:
        data = data_of(config)
        self._model = model_of(config, data)
        self._images = only(data.prepared(data.train.inputs))
        self._labels, self._size = only(data.train.targets), config.batch_size
        self.loss = 0.0

    def block(self) -> None:
        """Compute the gradients of one block."""
        for _ in range(BLOCK):
            chosen = torch.randint(len(self._labels), (self._size,))
            for p in self._model.parameters():
                p.grad = None
            logits = self._model(self._images.index_select(0, chosen))
            loss = F.cross_entropy(logits, self._labels.index_select(0, chosen))
            loss.backward()  # type: ignore[no-untyped-call]
            self.loss = loss.item()


def serve(overrides: list[str]) -> None:
    """Run the plain loop in blocks, as `papers.benchmarks.timing` requests them."""
    configure_process()
    loop = Bare(to_config(compose_config(overrides)))
    take_turns(loop.block, lambda: loop.loss)


def measure(algorithm: str, cycles: int) -> dict[str, Any]:
    """Compare the times of the gradients alone and of the local engine, with 1 and 2 workers."""
    overrides = settings(algorithm)
    alone = [sys.executable, "-m", "papers.benchmarks.pushes", "serve", *overrides]
    with ExitStack() as stack:
        bare, other = (stack.enter_context(Child(alone)) for _ in range(2))
        contestants: dict[str, Contestant] = {
            "bare": bare,
            "bare, 2 at once": AtOnce(bare, other),
            "local, 1 worker": stack.enter_context(application(1, overrides)),
            "local, 2 workers": stack.enter_context(application(2, overrides)),
        }
        result: dict[str, Any] = compare(contestants, cycles=cycles, rounds=ROUNDS, warmup=2)
    for row in result.values():
        row["ms a push"] = round(row["seconds"] / BLOCK * 1e3, 3)
    for name in ("bare, 2 at once", "local, 2 workers"):
        minutes = result[name]["seconds"] / BLOCK * PAPER / 60
        result[name]["minutes for the paper's pushes"] = round(minutes, 1)
    ratio = result["local, 1 worker"]["ratio"]
    result["unmet"] = [] if ratio <= LIMIT else [f"1 worker takes {ratio}, not {LIMIT}"]
    return result


def memory(algorithm: str) -> dict[str, Any]:
    """Return the peak memory with a small model after 5,000 and after 250,000 updates."""
    overrides = [*settings(algorithm), "dataset.size=8", "model=mlp"]
    few, all_of_them = 5_000 // BLOCK, PAPER // BLOCK
    with application(1, overrides) as child:
        child(few)
        early = child.peak_memory_mb()
        child(all_of_them - few)
        late = child.peak_memory_mb()
    return {
        f"peak MB after {few * BLOCK} pushes": round(early, 1),
        f"peak MB after {all_of_them * BLOCK} pushes": round(late, 1),
    }


def main() -> None:
    """Run the comparison and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=8)
    parser.add_argument("--algorithm", default="adacomp", help="adacomp, comp_asgd or asgd")
    parser.add_argument("--memory", action="store_true", help="memory in place of time")
    options = parser.parse_args()
    if options.memory:
        result = memory(options.algorithm)
    else:
        result = measure(options.algorithm, options.cycles)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    serve(sys.argv[2:]) if sys.argv[1:2] == ["serve"] else main()
