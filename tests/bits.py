"""Tells whether a change of the code changes any bit of a run; it compares hashes of runs.

    python -m tests.bits store FILE             runs every preset and strategy, 1 and 2 workers
    python -m tests.bits compare FILE           names runs that differ; exit code 1 if any differs
    python -m tests.bits compare FILE fedavg    only runs whose name holds a word

A hash covers the model's file, the history and the result, without values in real seconds. It is
valid for one kind of processor and one version of torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.local_runs import local_run
from tests.runs import ROOT, composed

CONF = ROOT / "conf"
REAL = {"seconds", "seconds_by_segment", "segments", "versions"}  # differ in any two runs
WORKERS = (1, 2)
SMALL = ["dataset=digits"]
ROUNDS, PUSHES = 8, 40
BATCHNORM = "model=four_layers"


def cases() -> Iterator[list[str]]:
    """Yield the overrides of each run: all presets, all strategies, and some combinations."""
    presets = [path.stem for path in sorted((CONF / "algorithm").glob("*.yaml"))]
    yield from ([f"algorithm={name}"] for name in presets)
    strategies = [path.stem for path in sorted((CONF / "strategy").glob("*.yaml"))]
    yield from ([f"strategy={name}"] for name in strategies if name not in presets)
    for name in ("fedavg_f2i", "esgd", "adacomp", "fedasync", "fedbuff"):
        yield [f"algorithm={name}", BATCHNORM]
    for name in ("f2i", "topk", "qsgd", "float16"):
        yield ["algorithm=fedavg_topk", f"downlink={name}"]
    yield ["algorithm=esgd", "downlink=average"]
    for name in ("drive", "int4", "selective", "bfloat16", "threshold"):
        yield [f"compression={name}"]
    yield ["strategy=fedadam", "compression=topk", BATCHNORM]
    yield ["strategy=fedmedian", "compression=f2i", BATCHNORM]
    yield ["algorithm=sgd", "strategy.mean=median", BATCHNORM]
    for name in ("adsl", "lte", "mixed", "waits"):
        yield ["algorithm=fedavg_f2i_both", f"network={name}"]
    yield ["algorithm=esgd", "network.loss=0.2", "timeout=5"]
    yield ["algorithm=adacomp", "network.crash=0.05", "network.rejoin_seconds=5"]
    yield ["algorithm=fedavg", "partition=dirichlet", "schedule=cosine", "optimizer=adam"]


def length(words: list[str]) -> list[str]:
    """Return further overrides that make a run short."""
    strategy = composed(*words).strategy
    more = list[str]()
    if "num_malicious_nodes" in strategy:
        more += ["strategy.num_malicious_nodes=1"]
    if "pushes" in strategy:
        half = PUSHES // 2
        return [*more, f"strategy.pushes={PUSHES}", f"strategy.record_every={half}",
                f"eval_every={half}"]  # fmt: skip
    if "record_every" in strategy:
        more += ["strategy.record_every=4"]
    return [*more, f"rounds={ROUNDS}", "eval_every=4"]


def digest(folder: Path) -> str:
    """Return the SHA-256 of a run's files, in hexadecimal digits."""
    found = hashlib.sha256((folder / "model.safetensors").read_bytes())
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    for text in (*lines, (folder / "result.json").read_text(encoding="utf-8")):
        kept = {key: value for key, value in json.loads(text).items() if key not in REAL}
        found.update(json.dumps(kept, sort_keys=True).encode())
    return found.hexdigest()


def digest_of(words: list[str], workers: int) -> str:
    """Run on the local engine; return the run's `digest`, or the error's type and text."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            local_run(Path(folder), *SMALL, *words, *length(words), workers=workers)
        except RuntimeError as error:  # a run may end with an error, which must then stay the same
            return f"{type(error).__name__}: {error}"
        return digest(Path(folder))


def main(words: list[str] | None = None) -> int:
    """Store the hashes of runs, or compare them with stored ones; return an exit code."""
    text, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m tests.bits", description=text, epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("what", choices=("store", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("word", nargs="?", default="")
    given = parser.parse_args(words)
    logging.disable(logging.WARNING)
    stored: dict[str, str] = {}
    if given.file.exists():
        stored = json.loads(given.file.read_text(encoding="utf-8"))
    different = 0
    for each in cases():
        for workers in WORKERS:
            name = f"{' '.join(each)}, {workers} worker{'s' if workers > 1 else ''}"
            if given.word not in name:
                continue
            found = digest_of(each, workers)
            if given.what == "store":
                stored[name] = found
                given.file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            elif found != stored.get(name):
                different += 1
                print(f"differs: {name}: {stored.get(name)} was stored, {found} is", flush=True)
    print(f"{different} differ" if given.what == "compare" else f"{len(stored)} stored")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
