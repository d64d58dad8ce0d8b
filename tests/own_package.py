"""A package of the user's own with everything that a package may bring, and its YAML files."""

PACKAGE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from edgewire.compression.base import ResidualSparsifier, get_or_zeros
from edgewire.compression.registry import register
from edgewire.task.datasets import Data, Split
from edgewire.task.local import LocalAlgorithm
from edgewire.task.objectives import Metric, Objective


def table(samples=400):
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(0))
    return Data(Split(x[:-80], x[:-80].sum(1)), Split(x[-80:], x[-80:].sum(1)))


def net(hidden: int = 16):
    return nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 1))


class Absolute(Objective):
    metrics = (Metric("absolute", False),)

    def sums(self, model, inputs, targets):
        total = (model(inputs)[:, 0] - targets).abs().sum()
        return {"loss": total, "absolute": total}

    def loss(self, model, inputs, targets):
        return self.sums(model, inputs, targets)["loss"] / len(inputs)


class Clipped(LocalAlgorithm):
    def correct(self, run):
        run.gradient.clamp_(-1, 1)


@register("sparsifier")
@dataclass(frozen=True)
class Blocks(ResidualSparsifier):
    name: ClassVar[str] = "blocks"
    id: ClassVar[int] = 200
    chunk: int = 16

    def choose(self, given, step):
        place = get_or_zeros(step.memory, "place", 1, np.int64)
        place[0] = (place[0] + self.chunk) * (place[0] + self.chunk < len(given))
        last = min(place[0] + self.chunk, len(given))
        return np.arange(place[0], last, dtype=np.uint32)
"""
METHOD = "{sparsifier: blocks, chunk: 20}\n"
EXPERIMENT = """# @package _global_
packages: [mine]
dataset: {_target_: table}
model: {_target_: net}
objective: {_target_: Absolute}
local: {_target_: Clipped}
nodes: 2
rounds: 4
lr: 0.02
"""
FILES = {
    "mine.py": PACKAGE.lstrip(),
    "conf/compression/blocks.yaml": METHOD,
    "conf/experiment/mine.yaml": EXPERIMENT,
}
WORDS = ["experiment=mine", "compression=blocks", "compression.chunk=24"]


def written(folder):
    """Write the package's files below a folder; return the words of a command that uses them."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return ["--config-dir", str(folder / "conf"), *WORDS]
