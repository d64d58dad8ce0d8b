"""Measures the time and memory that the most expensive valid payloads cost a server.

`python -m papers.benchmarks.hostile` makes payloads of a LeNet-5, a ResNet18 and a ResNet50 with
every quantizer and every coder, and prints JSON. Honest payloads are dense and have the default
options of the quantizer. Hostile payloads select nearly every entry and have the most expensive
options; some send half of the tensors exactly, and some contain the tensors' names. With the coder
`context`, some have a fifth of the entries, at random places in random classes. The benchmark
does with each payload what `CompressedGrid` does: it decodes the payload and computes a new model.

For each model and coder it compares the most expensive honest payload with the most expensive
hostile one. It also reports this ratio for int8 payloads alone, without a target.

Seconds are CPU time, the minimum of several measurements. `traced_mb` is the peak by tracemalloc in
this process. `resident_mb` is the growth of the peak resident memory (VmHWM) in a fresh process,
which includes the buffers of zstd and pcodec. Memory does not include the payload. The exit code is
1 if a target is not met.
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
from numpy.typing import NDArray

from edgewire.compression.batchnorm import exact_tensors
from edgewire.compression.coders.context import SPARSE
from edgewire.compression.coders.shared_context import SharedContext
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names
from edgewire.compression.scatter import Vector

MODELS = {"lenet5": (1, 28), "resnet18": (3, 32), "resnet50": (3, 32)}  # channels, side
HARD: dict[str, dict[str, int]] = {
    "powersgd": {"rank": 64}, "int4": {"block": 16}, "qsgd": {"bucket": 16}
}  # fmt: skip
MEMORY, SECONDS = 2.0, 3.0  # targets: at most this many times those of an honest payload
TURNS = 5


class Case(NamedTuple):
    """A payload to measure.

    `named`: it contains the tensors' names and shapes. `context`: of its index set.
    """

    name: str
    payload: bytes
    named: bool = False
    context: SharedContext | None = None


def layout_of(model: str) -> Layout:
    """Return the names and shapes of a whole model's tensors, also of BatchNorm's statistics."""
    # Not at the top: it imports torch, which the fresh processes do not need.
    from edgewire.task.models import build_model

    channels, side = MODELS[model]
    module = build_model(model, channels=channels, size=side, classes=10, seed=0)
    tensors = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
    return Layout(tuple(tensors), shapes, ("float32",) * len(tensors))


def delta(layout: Layout) -> Vector:
    """Return a Gaussian update, as the first training steps give; it compresses the least."""
    values = np.random.default_rng(0).standard_normal(layout.size, dtype=np.float32)
    return values * np.float32(1e-3)


def honest(layout: Layout, coder: str) -> Iterator[Case]:
    """Yield a dense payload for each quantizer, with default options, as honest nodes send it."""
    values = delta(layout)
    for quantizer in names("quantizer"):
        codec = make_codec(quantizer=quantizer, coder=coder, feedback=False)
        yield Case(f"{quantizer} {coder}", codec.encode(values, layout))


def hostile(layout: Layout, coder: str) -> Iterator[Case]:
    """Yield valid payloads that are as expensive as possible."""
    values, draw = delta(layout), np.random.default_rng(1)

    def taken(share: float | NDArray[np.float64]) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = draw.random(layout.size) < share
        for tensor in exact_tensors(layout):
            chosen[layout.offsets[tensor] : layout.offsets[tensor + 1]] = True
        return chosen

    most = np.flatnonzero(taken(0.999)).astype(np.uint32)  # not dense: 1 of 1,000 is missing
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
    if coder == "context":
        # Random classes, and nearly as many entries as may be coded by context. Their share depends
        # on the class, so that the encoder codes them by context.
        context = SharedContext(draw.integers(0, 256, layout.size, dtype=np.uint8))
        some = np.flatnonzero(taken(1.9 / SPARSE * context.activity / 255)).astype(np.uint32)
        for quantizer in ("float32", "int8"):
            codec = make_codec(quantizer=quantizer, coder=coder, feedback=False)
            coded = codec.encode_sparse(some, values[some], layout, context=context)
            yield Case(f"{quantizer} {coder}, a fifth by context", coded, False, context)


def treat(case: Case, layout: Layout, model: Vector) -> Vector:
    """Decode a payload and compute the new model, as the server does."""
    known = None if case.named else layout
    update = decode_update(case.payload, known, context=case.context)
    return update.model_from(model)


def measure(case: Case, layout: Layout, model: Vector) -> dict[str, Any]:
    """Return the CPU seconds and the traced memory that a payload costs the server."""
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
    """Return the slowest payload, the slowest int8 payload, and the one with the most memory."""
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
    """Return the growth in MB of a fresh process that runs `treat` on a payload; Linux only."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        pickle.dump((case._asdict(), layout), file)
        file.flush()
        command = [sys.executable, "-m", "papers.benchmarks.hostile", "--grow", file.name]
        done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return float(done.stdout)


def grow(path: str) -> float:
    """Run `treat` on the payload in a file; return the growth of this process in MB."""
    with open(path, "rb") as file:
        fields, layout = pickle.load(file)
    case, small = Case(**fields), Layout(("weight",), ((9,),), ("float32",))
    treat(Case("", make_codec("topk").encode(delta(small), small)), small, delta(small))  # imports
    model = delta(layout)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory("VmRSS")
    treat(case, layout, model)
    return round(memory("VmHWM") - before, 1)


def memory(what: str) -> float:
    """Return an entry of this process's status (for example VmRSS), in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024 / 1e6


ROOT = Path(__file__).parents[2]


def compare(model: str, coder: str) -> dict[str, Any]:
    """Return a model's most expensive honest and hostile payloads, and their ratios."""
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
    """Measure and print JSON; exit with code 1 if a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--coders", nargs="+", default=names("coder"), choices=names("coder"))
    parser.add_argument("--grow", help=argparse.SUPPRESS)  # for the fresh process in `resident`
    options = parser.parse_args()
    if options.grow:
        print(grow(options.grow))
        return
    rows = [compare(model, coder) for model in options.models for coder in options.coders]
    print(json.dumps({"demanded": {"seconds": SECONDS, "memory": MEMORY}, "rows": rows}, indent=2))
    sys.exit(not all(row["met"] for row in rows))


if __name__ == "__main__":
    main()
