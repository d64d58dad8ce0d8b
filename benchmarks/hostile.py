"""What the costliest valid payloads cost a server beside honest dense ones, in seconds and memory.

`python -m benchmarks.hostile` makes payloads of a LeNet-5, a ResNet18 and a ResNet50 with every
quantizer and coder: honest ones (dense, the quantizer's own options) and hostile ones (nearly every
entry selected, with half of the tensors exact, with names; the options that cost the most), and
treats each as `CompressedGrid` does: it is decoded and makes a new model of an old one. JSON.

Per model and coder the costliest honest payload is set beside the costliest hostile one; the same
of int8 alone is there to be read. Seconds are the least of several turns of CPU time, `traced_mb`
the peak by tracemalloc, in this process; `resident_mb` is what a fresh process's resident memory
grew by at most (VmHWM), buffers of zstd and pcodec included. Memory is that beside the payload
itself. Exit code 1 if a demand is not met.
"""

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from compression import Layout, decode_update, make_codec, names
from compression.batchnorm import exact_tensors
from compression.scatter import Vector

MODELS = {"lenet5": (1, 28), "resnet18": (3, 32), "resnet50": (3, 32)}  # channels, side
HARD: dict[str, dict[str, int]] = {
    "powersgd": {"rank": 64}, "int4": {"block": 16}, "qsgd": {"bucket": 16}
}  # fmt: skip
MEMORY, SECONDS = 2.0, 3.0  # at most so many times an honest payload's
TURNS = 5


class Case(NamedTuple):
    """A payload, and whether its receiver takes the layout from it."""

    name: str
    payload: bytes
    named: bool = False


def layout_of(model: str) -> Layout:
    """Return the layout in which an app's model travels: BatchNorm's statistics in between."""
    from task.models import build_model  # not in the fresh processes: it imports torch

    channels, side = MODELS[model]
    module = build_model(model, channels=channels, size=side, classes=10, seed=0)
    tensors = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
    return Layout(tuple(tensors), shapes, ("float32",) * len(tensors))


def delta(layout: Layout) -> Vector:
    """Return an update as the first steps make it: Gaussian, which codes worst."""
    values = np.random.default_rng(0).standard_normal(layout.size, dtype=np.float32)
    return values * np.float32(1e-3)


def honest(layout: Layout, coder: str) -> Iterator[Case]:
    """Yield what honest nodes send that send everything."""
    values = delta(layout)
    for quantizer in names("quantizer"):
        codec = make_codec(quantizer=quantizer, coder=coder, feedback=False)
        yield Case(f"{quantizer} {coder}", codec.encode(values, layout))


def hostile(layout: Layout, coder: str) -> Iterator[Case]:
    """Yield valid payloads that cost as much as can be."""
    values, draw = delta(layout), np.random.default_rng(1)
    chosen = draw.random(layout.size) < 0.999  # 1 of 1,000 is missing: no short cut holds
    for tensor in exact_tensors(layout):
        chosen[layout.offsets[tensor] : layout.offsets[tensor + 1]] = True
    most = np.flatnonzero(chosen).astype(np.uint32)
    for quantizer in names("quantizer"):
        options: dict[str, Any] = {"coder": coder, "feedback": False, **HARD.get(quantizer, {})}
        codec = make_codec(quantizer=quantizer, **options)
        coded = codec.encode_sparse(most, values[most], layout)
        yield Case(f"{quantizer} {coder}, nearly all", coded)
        if quantizer in HARD:
            yield Case(f"{quantizer} {coder}, dense", codec.encode(values, layout))
    exact = make_codec(quantizer="int8", coder=coder, exact=list(layout.names[::2]))
    yield Case(f"int8 {coder}, half exact", exact.encode_sparse(most, values[most], layout))
    topk = make_codec("topk", "int8", coder, density=1.0)
    yield Case(f"int8 {coder}, all, named", topk.encode(values, layout, names=True), True)


def treat(case: Case, layout: Layout, model: Vector) -> Vector:
    """Do what the server does with a reply's payload."""
    update = decode_update(case.payload, None if case.named else layout)
    return update.model_from(model)


def measure(case: Case, layout: Layout, model: Vector) -> dict[str, Any]:
    """Return a payload's seconds and traced memory."""
    seconds = []
    for _ in range(TURNS):
        started = process_time()
        treat(case, layout, model)
        seconds.append(process_time() - started)
    tracemalloc.start()
    treat(case, layout, model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "payload": case.name,
        "bytes": len(case.payload),
        "seconds": float(f"{min(seconds):.4g}"),
        "traced_mb": float(f"{peak / 1e6:.4g}"),
    }


def costliest(cases: Iterator[Case], layout: Layout) -> dict[str, dict[str, Any]]:
    """Return the measures of the slowest payload, the slowest int8 one, the one of most memory."""
    model, measured, largest = delta(layout), list[dict[str, Any]](), Case("", b"")
    for case in cases:
        here = measure(case, layout, model)
        print(json.dumps(here), file=sys.stderr, flush=True)
        if all(here["traced_mb"] > other["traced_mb"] for other in measured):
            largest = case
        measured.append(here)
    int8 = [here for here in measured if here["payload"].startswith("int8")]
    most = max(measured, key=lambda here: here["traced_mb"])
    return {
        "slowest": max(measured, key=lambda here: here["seconds"]),
        "slowest_int8": max(int8, key=lambda here: here["seconds"]),
        "largest": {**most, "resident_mb": resident(largest, layout)},
    }


def resident(case: Case, layout: Layout) -> float:
    """Return by how many MB a fresh process grows that treats a payload; Linux only."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        pickle.dump((case._asdict(), layout), file)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.hostile", "--grow", file.name]
        done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return float(done.stdout)


def grow(path: str) -> float:
    """Treat the payload in a file; return by how many MB that has made this process grow."""
    with open(path, "rb") as file:
        fields, layout = pickle.load(file)
    case, small = Case(**fields), Layout(("weight",), ((9,),), ("float32",))
    treat(Case("", make_codec("topk").encode(delta(small), small)), small, delta(small))  # imports
    model = delta(layout)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    treat(case, layout, model)
    return round(memory("VmHWM") - before, 1)


def memory(what: str) -> float:
    """Return a line of this process's status, MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024 / 1e6


ROOT = Path(__file__).parent.parent


def compare(model: str, coder: str) -> dict[str, Any]:
    """Return the costliest honest and hostile payloads of a model, and the ratios."""
    layout = layout_of(model)
    good, bad = (costliest(make(layout, coder), layout) for make in (honest, hostile))
    ratios = {
        f"{which} {what}": round(bad[which][what] / good[which][what], 2)
        for which, what in (
            ("slowest", "seconds"),
            ("slowest_int8", "seconds"),
            ("largest", "traced_mb"),
            ("largest", "resident_mb"),
        )
    }
    met = ratios["slowest seconds"] <= SECONDS and ratios["largest traced_mb"] <= MEMORY
    one = {"model": model, "entries": layout.size, "coder": coder}
    return {**one, "honest": good, "worst": bad, "ratios": ratios, "met": met}


def main() -> None:
    """Measure; exit code 1 if a demand is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--coders", nargs="+", default=names("coder"), choices=names("coder"))
    parser.add_argument("--grow", help=argparse.SUPPRESS)  # a fresh process's own
    options = parser.parse_args()
    if options.grow:
        print(grow(options.grow))
        return
    rows = [compare(model, coder) for model in options.models for coder in options.coders]
    print(json.dumps({"demanded": {"seconds": SECONDS, "memory": MEMORY}, "rows": rows}, indent=2))
    sys.exit(not all(row["met"] for row in rows))


if __name__ == "__main__":
    main()
