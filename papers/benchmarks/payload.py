"""Compares sizes and speed of payloads with the entropy, zlib, torch.topk and memcpy.

`python -m papers.benchmarks.payload` trains LeNet-5, a CNN of 1.2 M parameters and ResNet18 for
some steps. It encodes their updates, compares the results with targets, and prints JSON. The data
are scikit-learn's digits, or another data set (`--dataset fashion_mnist --root FOLDER`).
`--table FILE.json --picture FILE.png` also measure every sparsifier with every quantizer and every
coder on one update. Times are CPU times of one thread.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgewire.compression.base import Array, StepContext
from edgewire.compression.codec import Codec
from edgewire.compression.coders.entropy import Entropy
from edgewire.compression.decoder import decode, index_spec, parts_of
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.selection import largest, uniform
from edgewire.task.process import configure_process
from papers.benchmarks.cpu import ratios
from papers.benchmarks.updates import MODELS, Updates, Vector, train

Check = dict[str, Any]
UNIFORM = (0.001, 0.003, 0.01, 0.03, 0.1, 0.25)
REAL = (0.001, 0.01, 0.1)
# For a ResNet18 delta: the codec's options, and the target (times smaller than float32).
TIMES_SMALLER: dict[str, tuple[dict[str, Any], float]] = {
    "1 % float16": ({"sparsifier": "topk", "density": 0.01, "quantizer": "float16"}, 190),
    "0.1 % float16": ({"sparsifier": "topk", "density": 0.001, "quantizer": "float16"}, 1800),
    "dense int8": ({"quantizer": "int8"}, 5.5),
}


def check(name: str, value: float, demanded: float, *, least: bool = False, **more: Any) -> Check:
    """Return one row of the result: a value and its target, `demanded`.

    `least`: the target is a lower bound.
    """
    met = value >= demanded if least else value <= demanded
    demand = f"{'>=' if least else '<='} {demanded:g}"
    return {
        "check": name,
        "value": float(f"{value:.4g}"),
        "demanded": demand,
        "met": bool(met),
        **more,
    }


def entropy_bytes(symbols: Array) -> float:
    """Return the order-0 entropy of a stream of small symbols, in bytes."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / symbols.size)).sum() / 8)


def set_bytes(n: int, k: int) -> float:
    """Return n H(k / n) / 8: the bytes for k of n indices if all sets are equally likely."""
    share = k / n
    return float(-n * (share * np.log2(share) + (1 - share) * np.log2(1 - share)) / 8)


def index_checks(every: dict[str, Updates]) -> Iterator[Check]:
    """Compare the bytes of encoded index sets, random and of real updates, with n H(k / n) / 8."""
    for n in (1_000_000, 11_200_000):
        for density in UNIFORM:
            k = int(density * n)
            indices = uniform(n, k, np.random.default_rng(0))
            size = _coded(indices, n)
            yield check(f"uniform set, n {n:,}, {density:.1%}", size / set_bytes(n, k), 1.05)
    for model, updates in every.items():
        n = updates.layout.size
        for sort, density in ((s, d) for s in ("gradient", "delta") for d in REAL if n >= 1e6):
            k = int(density * n)
            size = _coded(largest(getattr(updates, sort), k), n)
            yield check(f"top-k set, {model} {sort}, {density:.1%}", size / set_bytes(n, k), 0.90)


def _coded(indices: Array, n: int) -> int:
    return len(Entropy().encode(indices, index_spec(len(indices), n)) or indices.data)


def level_checks(every: dict[str, Updates]) -> Iterator[Check]:
    """Compare dense int8, ternary and QSGD payloads with their order-0 entropy and with zlib."""
    for model, updates in every.items():
        for sort in ("gradient", "delta"):
            values = getattr(updates, sort)
            levels, size = _levels(make_codec(quantizer="int8"), values, updates.layout)
            entropy, deflated = entropy_bytes(levels), len(zlib.compress(levels.data, 6))
            name = f"{model} {sort}"
            yield check(f"int8 / entropy, {name}", size / entropy, 1.06)
            yield check(f"int8 / zlib 6, {name}", size / deflated, 1.0)
            for quantizer, symbols in (("ternary", _trits), ("qsgd", _same)):
                codec = make_codec(quantizer=quantizer, coder="entropy")
                levels, size = _levels(codec, values, updates.layout)
                entropy = entropy_bytes(symbols(levels, len(values)))
                yield check(f"{quantizer} / entropy, {name}", size / entropy, 1.05)


def _levels(codec: Codec, values: Vector, layout: Layout) -> tuple[Array, int]:
    """Return the last stream of integers that a quantizer makes, and its size in bytes, coded."""
    parts = parts_of(None, layout)
    levels = codec.quantizer.encode(values, parts, StepContext(layout, {}, (0, 1)))[-1]
    spec = codec.quantizer.specs(parts)[-1]
    return levels, len(codec.coder.encode(levels, spec) or levels.data)


def _same(levels: Array, count: int) -> Array:
    return levels


def _trits(levels: Array, count: int) -> Array:
    digits = levels.astype(np.uint8)[:, None] // np.array([1, 3, 9, 27, 81], dtype=np.uint8) % 3
    return digits.reshape(-1)[:count]


def size_checks(updates: Updates) -> Iterator[Check]:
    """Check the sizes of whole payloads of a ResNet18 delta."""
    for name, (options, demanded) in TIMES_SMALLER.items():
        payload = make_codec(**options).encode(updates.delta, updates.layout)
        times = 4 * updates.layout.size / len(payload)
        yield check(f"resnet18 delta, {name}: times smaller than float32", times, demanded,
                    least=True, bytes=len(payload))  # fmt: skip


def speed_checks(updates: Updates, cycles: int) -> Iterator[Check]:
    """Compare encoding and decoding of a delta with zlib, torch.topk and memcpy."""
    delta, layout = updates.delta, updates.layout
    int8, sparse = make_codec(quantizer="int8"), make_codec("topk", quantizer="float16")
    dense_payload = int8.encode(delta, layout)
    sparse_payload = sparse.encode(delta, layout)
    levels = _levels(int8, delta, layout)[0].tobytes()
    copy, tensor, k = np.empty_like(delta), torch.from_numpy(delta), int(0.01 * layout.size)
    memory = {"residual": np.zeros_like(delta)}

    def encode_sparse() -> object:
        memory["residual"].fill(0)  # makes all calls equal; costs half a memcpy
        return sparse.encode(delta, layout, memory=memory)

    zip6 = ratios(
        {"zlib 6": lambda: zlib.compress(levels, 6), "ours": lambda: int8.encode(delta, layout)},
        "zlib 6", max(2, cycles // 3),
    )  # fmt: skip
    yield check("dense int8 encode: times as fast as zlib 6", 1 / zip6["ours"]["ratio"], 8,
                least=True)  # fmt: skip
    copies = ratios(
        {
            "memcpy": lambda: np.copyto(copy, delta),
            "dense int8 encode": lambda: int8.encode(delta, layout),
            "dense int8 decode": lambda: decode(dense_payload, layout),
            "sparse 1 % decode": lambda: decode(sparse_payload, layout),
        },
        "memcpy", cycles,
    )  # fmt: skip
    for name, demanded in (
        ("dense int8 encode", 20),
        ("dense int8 decode", 12),
        ("sparse 1 % decode", 5),
    ):
        yield check(f"{name} / memcpy", copies[name]["ratio"], demanded, **copies[name])
    top = ratios(
        {
            "torch.topk": lambda: torch.topk(tensor.abs(), k, sorted=False),
            "sparse 1 % encode": encode_sparse,
        },
        "torch.topk", cycles,
    )  # fmt: skip
    ours = top["sparse 1 % encode"]
    yield check("sparse 1 % encode / torch.topk", ours["ratio"], 0.30, **ours)


def main() -> None:
    """Run the checks and print JSON; exit with code 1 if a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--root", help="folder of the data set")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--table", type=Path, help="write every combination's row to this file")
    parser.add_argument("--picture", type=Path, help="draw the table's bytes against its error")
    options = parser.parse_args()
    configure_process()
    every = {model: train(model, options.dataset, options.root) for model in options.models}
    checks = [*index_checks(every), *level_checks(every)]
    if "resnet18" in every:
        checks += [
            *size_checks(every["resnet18"]),
            *speed_checks(every["resnet18"], options.cycles),
        ]
    result: dict[str, Any] = {"dataset": options.dataset, "checks": checks}
    result["unmet"] = [line["check"] for line in checks if not line["met"]]
    print(json.dumps(result, indent=2))
    if options.table or options.picture:
        from papers.benchmarks.table import draw, rows

        table = rows(every["cnn" if "cnn" in every else options.models[0]])
        if options.table:
            options.table.write_text(json.dumps(table, indent=1) + "\n")
        if options.picture:
            draw(table, options.picture)
    sys.exit(bool(result["unmet"]))


if __name__ == "__main__":
    main()
