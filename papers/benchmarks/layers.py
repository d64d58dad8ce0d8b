"""Measures a message's bytes for convolutions and for other layers (Edgify, CE-SGD's Table II).

    python -m papers.benchmarks.layers                    # ResNet18, ResNet50, 10 and 1,000 classes
    python -m papers.benchmarks.layers --models mobilenet,vgg11,wideresnet --classes 100 --methods
    cesgd

The gradients are from `--steps` steps of SGD on scikit-learn's digits, enlarged to 32 x 32 pixels
in three channels, with batches of 8. A gradient has two parts: the weights of all convolutions, and
everything else. Each part is encoded separately, with a separate residual. The output has the size
of the last step's payload in MB, and `encode_ms`: the smallest CPU time of a step, for both parts.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgewire.compression.codec import Codec
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.task.flat_model import FlatModel
from edgewire.task.models import build_model
from edgewire.task.process import configure_process
from edgewire.task.tensors import only
from papers.benchmarks.updates import data_named

PRESET: dict[str, Any] = {"sparsifier": "cesgd", "feedback": True}
METHODS: dict[str, dict[str, Any]] = {
    "float32": {"coder": "raw"},
    "f2i": {"quantizer": "int8", "coder": "raw"},
    "f2i, zip": {"quantizer": "int8", "coder": "zip"},
    "f2i, zstd": {"quantizer": "int8", "coder": "zstd"},
    "dgc, conv, 0.999": {"sparsifier": "dgc", "layers": "conv", "coder": "raw"},
    "dgc, conv, 0.999, zip": {"sparsifier": "dgc", "layers": "conv", "coder": "zip"},
    "dgc, conv, 0.999, entropy": {"sparsifier": "dgc", "layers": "conv"},
    "dgc, all, 0.999, entropy": {"sparsifier": "dgc"},
    "cesgd": {**PRESET, "operator": "largest", "density": 0.34, "scope": "global"},
    "cesgd, union": {"sparsifier": "cesgd"},
    "qsgd": {"quantizer": "qsgd"},
    "terngrad": {"quantizer": "ternary"},
}


class Part:
    """Some tensors of a model, concatenated, and what each method stores for them between steps.

    A method stores, for example, a residual.
    """

    def __init__(self, flat: FlatModel, chosen: list[int], methods: list[str]) -> None:
        sizes = [int(np.prod(shape)) for shape in flat.shapes]
        ends = np.cumsum(sizes)
        self._runs = [slice(int(ends[t]) - sizes[t], int(ends[t])) for t in chosen]
        names = tuple(flat.names[t] for t in chosen)
        self.layout = Layout(
            names, tuple(flat.shapes[t] for t in chosen), ("float32",) * len(names)
        )
        self._codecs: dict[str, Codec] = {name: make_codec(**METHODS[name]) for name in methods}
        self._memory: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in methods}
        self.bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def encode(self, gradient: NDArray[np.float32], seed: int, loss: float) -> None:
        """Encode this part of a gradient with all methods; store the payloads' sizes and times."""
        if not self._runs:
            return
        part = np.concatenate([gradient[run] for run in self._runs])
        for name, codec in self._codecs.items():
            start = time.process_time()
            payload = codec.encode(
                part, self.layout, memory=self._memory[name], seed=seed, loss=loss, as_before=False
            )
            took = time.process_time() - start
            self.bytes[name] = len(payload)
            self.seconds[name] = min(took, self.seconds.get(name, took))


def measure(model: str, classes: int, methods: list[str], steps: int) -> dict[str, Any]:
    """Return for each method the MB of a message (convolutions, others, both) and encoding time."""
    data = data_named("digits", None, 32)
    labels = only(data.train.targets)
    images = only(data.prepared(data.train.inputs)).expand(-1, 3, -1, -1)
    flat = FlatModel(build_model(model, channels=3, size=32, classes=classes, seed=0))
    trained = [t for t, name in enumerate(flat.names) if not name.endswith(("_mean", "_var"))]
    conv = [t for t in trained if len(flat.shapes[t]) == 4]
    parts = {
        "convolutions": Part(flat, conv, methods),
        "others": Part(flat, [t for t in trained if t not in conv], methods),
    }
    optimizer = torch.optim.SGD([flat.parameters], lr=0.01, momentum=0.9)
    for step in range(steps):
        batch = slice(8 * step, 8 * step + 8)
        flat.zero_grad()
        loss = nn.functional.cross_entropy(flat.module(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        for part in parts.values():
            part.encode(flat.gradient.numpy(), step, loss.item())
        optimizer.step()
    return {
        name: {
            **{key: round(part.bytes.get(name, 0) / 1e6, 3) for key, part in parts.items()},
            "both": round(sum(part.bytes.get(name, 0) for part in parts.values()) / 1e6, 3),
            "encode_ms": round(1e3 * sum(p.seconds.get(name, 0) for p in parts.values()), 1),
        }
        for name in methods
    }


def main() -> None:
    """Measure the requested models and methods, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default="resnet18,resnet50")
    parser.add_argument("--classes", default="10,1000")
    parser.add_argument("--methods", default="; ".join(METHODS), help="separated by semicolons")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    configure_process()
    start, methods = time.perf_counter(), [m.strip() for m in options.methods.split(";")]
    result: dict[str, Any] = {
        f"{model}, {classes} classes": measure(model, int(classes), methods, options.steps)
        for model in options.models.split(",")
        for classes in options.classes.split(",")
    }
    result["minutes"] = round((time.perf_counter() - start) / 60, 1)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
