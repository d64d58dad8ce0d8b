"""Measures how much of the squared gradient CE-SGD's entries contain, and why the map adds little.

    python -m papers.benchmarks.cesgd_map                                       # JSON on stdout
    python -m papers.benchmarks.cesgd_map --dataset fashion_mnist --root FOLDER  # four minutes

Four workers train LeNet-5 in a plain loop: each computes the gradient of a mini-batch of 64 images
and selects entries of it, and Adam applies the mean of what they send. Nothing crosses a network,
and nothing is stored for later (no residual). For each rule the output has means over the workers
and the steps after `SKIPPED`:

    entries       the share of the entries that are sent
    square        the share of the sum of the squared gradient that these entries contain; random
                  entries contain as large a share of it as of the entries
    correlation   of the map M with the magnitude of the gradient, when a new selection is drawn:
                  the mean over the tensors, weighted by their sizes
    fell          the share of the steps whose mini-batch had a lower loss than the last one
"""

import argparse
import json
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgewire.compression.base import StepContext
from edgewire.compression.layout import Layout
from edgewire.compression.registry import get
from edgewire.task.flat_model import FlatModel
from edgewire.task.models import build_model
from edgewire.task.process import configure_process
from edgewire.task.tensors import only
from papers.benchmarks.updates import data_named

WORKERS, BATCH, LR = 4, 64, 0.008
SKIPPED = 100  # steps at the start, in which the map still fills
UNION = {"operator": "union", "density": 0.12, "gain": 3.0}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "map": ("cesgd", {"operator": "map", "density": 0.3}),
    "map, decay 0.9": ("cesgd", {"operator": "map", "density": 0.3, "decay": 0.9}),
    "union": ("cesgd", UNION),
    "union, decay 0.9": ("cesgd", {**UNION, "decay": 0.9}),
    "union, decay 0 (no map)": ("cesgd", {**UNION, "decay": 0.0}),
    "largest": ("cesgd", {"operator": "largest", "density": 0.3}),
    "random": ("selective", {"pick": "random", "density": 0.3}),
    "top-k": ("selective", {"pick": "largest", "density": 0.3}),
}
Vector = NDArray[np.float32]


def correlation(weights: Vector, gradient: Vector, layout: Layout) -> float:
    """Return the correlation of (n,) weights with magnitudes: the tensors' mean, by their sizes."""
    found, sizes = [], []
    for start, stop in pairwise(layout.offsets.tolist()):
        # float64: a map that decays has entries whose squares are 0 in float32
        w, g = weights[start:stop].astype(float), np.abs(gradient[start:stop]).astype(float)
        if stop - start > 1 and w.std() and g.std():
            found.append(float(np.corrcoef(w, g)[0, 1]))
            sizes.append(stop - start)
    return float(np.average(found, weights=sizes)) if found else 0.0


def measure(rule: str, dataset: str, root: str | None, steps: int, seed: int) -> dict[str, float]:
    """Return the means of `entries`, `square`, `correlation` and `fell` of a rule's training."""
    data = data_named(dataset, root, 28)
    labels, images = only(data.train.targets), only(data.train.inputs)
    flat = FlatModel(build_model("lenet5", channels=1, size=28, classes=10, seed=seed))
    layout = Layout(tuple(flat.names), tuple(flat.shapes), ("float32",) * len(flat.names))
    name, options = RULES[rule]
    scope = {} if name == "selective" else {"scope": "tensor"}
    sparsifier: Any = get("sparsifier", name)(**options, **scope)
    optimizer = torch.optim.Adam([flat.parameters], lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    memories: list[dict[str, NDArray[Any]]] = [{} for _ in range(WORKERS)]
    generator = torch.Generator().manual_seed(seed)
    rows: dict[str, list[float]] = {"entries": [], "square": [], "correlation": [], "fell": []}
    for step in range(steps):
        mean = np.zeros(layout.size, dtype=np.float32)
        for worker, memory in enumerate(memories):
            batch = torch.randint(len(labels), (BATCH,), generator=generator)
            flat.zero_grad()
            loss = nn.functional.cross_entropy(
                flat.module(data.prepared(images[batch])), labels[batch]
            )
            loss.backward()  # type: ignore[no-untyped-call]
            gradient = flat.gradient.numpy()
            before = memory["map"].copy() if "map" in memory else None
            known = "loss" in memory
            fell = known and loss.item() < memory["loss"][0]
            draws = (seed * steps + step) * WORKERS + worker, 0
            chosen = sparsifier.select(
                gradient, StepContext(layout, memory, draws, loss.item(), WORKERS)
            )
            mean[chosen.indices] += chosen.values / WORKERS
            if step < SKIPPED:
                continue
            rows["entries"].append(len(chosen.indices) / layout.size)
            rows["square"].append(float(np.square(chosen.values).sum() / np.square(gradient).sum()))
            if known:
                rows["fell"].append(fell)
            if before is not None and not fell:
                rows["correlation"].append(correlation(before, gradient, layout))
        flat.gradient.copy_(torch.from_numpy(mean))
        optimizer.step()
        schedule.step()
    return {key: round(float(np.mean(row)), 3) for key, row in rows.items() if row}


def main() -> None:
    """Measure each rule, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--root", help="the folder of the data set")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    configure_process()
    words = (options.dataset, options.root, options.steps, options.seed)
    print(json.dumps({rule: measure(rule, *words) for rule in RULES}, indent=2))


if __name__ == "__main__":
    main()
