"""Checks `compare goal=within:1` on own tasks: does the chosen method lose at most a point?

    python -m papers.benchmarks.within [--seeds 10] [--limit 1] [--rows 8000]     # JSON on stdout

For each task it searches, and trains the chosen method and the uncompressed one, each at the rate
that the search has found, with new seeds and the test set. `held`: the seeds at which the chosen
method loses at most the limit against the mean of the uncompressed runs: points of accuracy, or
thirds of a percent of the error. `bytes`: the bytes of both directions, divided by those of the
uncompressed runs. `seconds`: of the search.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from edgewire import sweep
from edgewire.command.search import losses
from edgewire.report.runs import read_overrides
from papers.benchmarks.timing import ROOT

TASKS = {
    "classes": "dataset._target_=papers.tasks.classes model=table_mlp model.columns=40 "
    "model.hidden=128 model.outputs=10",
    "hastie": "dataset._target_=papers.tasks.hastie model=table_mlp model.columns=10 "
    "model.outputs=2",
    "friedman": "dataset._target_=papers.tasks.friedman model=table_mlp model.columns=10 "
    "objective=regression",
    "mnist": "dataset._target_=papers.tasks.pictures +dataset.source=mnist model=mlp "
    f"+dataset.root={ROOT / 'data'}",  # nobody had looked at it when the search was made
}
FIRST = 100  # the first new seed


def searched(words: Sequence[str], limit: float) -> tuple[list[str], list[str], float]:
    """Search on a task; return the words of the chosen and of the uncompressed run, and seconds."""
    command = [sys.executable, str(ROOT / "run.py"), "compare", *words, f"goal=within:{limit:g}"]
    began = time.monotonic()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    seconds = time.monotonic() - began
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    found = re.search(r"^run it +python run.py (.*)$", done.stdout, re.M)
    plain = read_overrides(sorted(Path("multirun").glob("*/*/0"))[1])  # after those at all rates
    chosen = shlex.split(found[1]) if found else []  # none is surely within the limit
    kept = [f"{key}={plain[key]}" for key in ("algorithm", "lr", "nodes", "rounds")]
    return chosen or [*words, *kept], [*words, *kept], seconds


def checked(name: str, limit: float, seeds: int, rows: int) -> dict[str, Any]:
    """Return the numbers of a task."""
    count = "samples" if name == "mnist" else "rows"
    words = [*TASKS[name].split(), f"+dataset.{count}={rows}"]
    chosen, plain, seconds = searched(words, limit)
    new = f"seed={','.join(str(FIRST + number) for number in range(seeds))}"
    ours, theirs = (
        sweep(*(word for word in each if not word.startswith("seed=")), new, progress=False)
        for each in (chosen, plain)
    )
    found = losses(*([run.run for run in runs] for runs in (ours, theirs)))
    sizes = [fmean(sum(run.traffic[:2]) for run in runs) for runs in (ours, theirs)]
    return {
        "chosen": " ".join(word for word in chosen if word not in words),
        "held": sum(loss <= limit for loss in found),
        "seeds": len(found),
        "mean loss": fmean(found),
        "largest loss": max(found),
        "bytes": sizes[0] / sizes[1],
        "seconds": round(seconds),
    }


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--tasks", default=",".join(TASKS))
    asked = parser.parse_args()
    here = Path.cwd()
    found = {}
    for name in asked.tasks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found[name] = checked(name, asked.limit, asked.seeds, asked.rows)
            os.chdir(here)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
