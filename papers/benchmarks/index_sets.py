"""Compares index sets coded by context with `coder=entropy`, and with the entropy of uniform sets.

    python -m papers.benchmarks.index_sets [OVERRIDE ...]     # JSON on stdout; a few minutes

It runs `SETTINGS` with the given overrides, for example `dataset=fashion_mnist dataset.root=FOLDER
model=lenet5`, and codes every index set of the run in three ways. `bytes` are means over the sets
after the first `WARM_UP` updates of the server. `of uniform` divides them by n H(k / n), the
entropy of a uniform set. `milliseconds` are CPU times of one thread for one index set; `classes`
is the time in which the classes are made, once for each version of the model. `nodes=10` codes
ten sets up and one set down with the same classes.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from math import lgamma, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from edgewire.compression.base import Array, Kind, Spec
from edgewire.compression.coders.context import Context
from edgewire.compression.coders.entropy import Entropy
from edgewire.compression.coders.shared_context import IndexContext
from edgewire.conf.classes import HERE
from edgewire.conf.load import compose_config, run_config, to_config
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from edgewire.task.process import configure_process

SETTINGS = [
    "algorithm=fedavg_topk", "compression.coder=context", "compression.quantizer=lloyd",
    "downlink=topk", "downlink.coder=context", "downlink.quantizer=lloyd",
    "downlink.density=0.08", "downlink.from_seed=true", "rounds=10",
]  # fmt: skip
WARM_UP = 3  # updates of the server before the first set that counts
T = TypeVar("T")


def entropy_bytes(entries: int, selected: int) -> float:
    """Return the entropy of a uniform set of `selected` of the entries, in bytes: log2 C(n, k)."""
    terms = lgamma(entries + 1) - lgamma(selected + 1) - lgamma(entries - selected + 1)
    return terms / log(2) / 8


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of `work`, and its CPU time in milliseconds."""
    started = time.process_time()
    made = work()
    return made, 1000 * (time.process_time() - started)


def measured(indices: Array, spec: Spec) -> dict[str, float]:
    """Code one index set in each way; return the bytes and the times."""
    context = spec.context
    assert context is not None
    plain, plain_time = timed(lambda: Entropy().encode(indices, spec))
    ours, our_time = timed(lambda: Context().encode(indices, spec))
    assert plain is not None
    assert ours is not None
    _, plain_decoding = timed(lambda: Entropy.decode(memoryview(plain), spec))
    found, our_decoding = timed(lambda: Context.decode(memoryview(ours), spec))
    np.testing.assert_array_equal(found, indices)
    return {
        "entries": spec.bound,
        "selected": spec.size,
        "uniform": entropy_bytes(spec.bound, spec.size),
        "entropy": len(plain),
        "context": len(ours),
        "encode entropy": plain_time,
        "encode context": our_time,
        "decode entropy": plain_decoding,
        "decode context": our_decoding,
    }


def recorded(overrides: list[str]) -> tuple[dict[str, list[dict[str, float]]], list[float]]:
    """Run once; return a row for each index set, by direction, and the times of the classes."""
    rows = defaultdict[int, list[dict[str, float]]](list)
    versions, classes = dict[bytes, None](), list[float]()
    encode, build = Context.encode, IndexContext.__init__

    def watch(self: Context, data: Array, spec: Spec) -> bytes | None:
        if spec.kind is Kind.INDICES and spec.context is not None:
            versions.setdefault(spec.context.counts.tobytes())
            if len(versions) > WARM_UP:
                with patch.object(Context, "encode", encode):
                    rows[id(self)].append(measured(data, spec))
        return encode(self, data, spec)

    def make(self: IndexContext, *arguments: Any) -> None:
        _, milliseconds = timed(lambda: (build(self, *arguments), self.counts))
        classes.append(milliseconds)

    with (
        patch.object(Context, "encode", watch),
        patch.object(IndexContext, "__init__", make),
        TemporaryDirectory() as folder,
    ):
        composed = compose_config([*SETTINGS, *overrides])
        values, config = {**run_config(composed, folder), "resume": False}, to_config(composed)
        run_local(Job(HERE.parent, values, config.nodes, Path(folder), config.seed), workers=1)
    up, down = sorted(rows.values(), key=len, reverse=True)
    return {"up": up, "down": down}, classes


def main() -> None:
    """Run with the overrides of the command line, and print the comparison as JSON."""
    configure_process()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sets, classes = recorded(sys.argv[1:])
    result: dict[str, Any] = {"milliseconds": {"classes": round(float(np.median(classes)), 3)}}
    for direction, rows in sets.items():
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        result[direction] = {
            "sets": len(rows),
            "entries": int(mean["entries"]),
            "selected": round(mean["selected"], 1),
            "bytes": {key: round(mean[key], 1) for key in ("uniform", "entropy", "context")},
            "of uniform": {
                key: round(mean[key] / mean["uniform"], 3) for key in ("entropy", "context")
            },
        }
        times = [key for key in mean if key.startswith(("encode", "decode"))]
        medians = {key: round(float(np.median([r[key] for r in rows])), 3) for key in times}
        result["milliseconds"][direction] = medians
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
