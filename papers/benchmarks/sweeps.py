"""Measures a sweep of twelve presets with three seeds, its report, and how it survives a kill.

    python -m papers.benchmarks.sweeps            # JSON on stdout; about three minutes

`sweep`: seconds of the whole sweep on all cores (joblib, one run a core). `report`: seconds of the
command that writes its report. `killed`: the same sweep is killed by SIGKILL when half of its runs
are done, and continued with `continue=`; how many runs were done before, how many were made after,
and how many of those done were made again. `start`: seconds of `from edgewire import train` in a
process; of a call with a wrong word after it; and of the command line with a wrong word.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from edgewire.report.runs import RESULT
from edgewire.simulation.workers.limits import allowed_cores
from papers.benchmarks.timing import ROOT

PRESETS = (
    *("fedavg", "fedavg_f2i", "fedavg_f2i_both", "fedavg_f2i_steps", "fedavg_topk", "fedavg_dgc"),
    *("fedavg_esgd", "fedavg_cesgd", "edgewire", "stc", "sparseloco", "fedbuff"),
)
SEEDS = 3
TIMES = 3  # how often a start is measured
START = """
import time
begun = time.perf_counter()
from edgewire import RunFailed, train
imported = time.perf_counter()
try:
    train("roundz=3")
except RunFailed:
    print(imported - begun, time.perf_counter() - imported)
"""


def words(folder: Path) -> list[str]:
    """Return the command line of the sweep into a folder."""
    return [
        *("run.py", "-m", f"algorithm={','.join(PRESETS)}", "seed=" + ",".join("012"[:SEEDS])),
        *("hydra/launcher=joblib", f"hydra.launcher.n_jobs={allowed_cores()}", "engine.workers=1"),
        f"hydra.sweep.dir={folder}",
    ]


def timed(arguments: Sequence[str]) -> float:
    """Run Python with arguments, and return its seconds. Raises an error if it fails."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begun


def done(folder: Path) -> dict[str, float]:
    """Return the finished jobs of a sweep, and when each wrote its result."""
    return {file.parent.name: file.stat().st_mtime for file in folder.glob(f"*/{RESULT}")}


def killed(folder: Path) -> dict[str, Any]:
    """Kill a sweep in the middle, continue it, and count its runs."""
    process = subprocess.Popen(
        [sys.executable, *words(folder)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while len(done(folder)) < len(PRESETS) * SEEDS // 2:
        if process.poll() is not None:
            raise RuntimeError("the sweep ended before it was killed")
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(2)  # processes of joblib's, which end with their parent
    before = done(folder)
    seconds = timed(["run.py", f"continue={folder}"])
    after = done(folder)
    return {
        "done_before": len(before),
        "made_after": len(after) - len(before),
        "made_again": sum(after[name] != when for name, when in before.items()),
        "seconds_after": round(seconds, 1),
    }


def start() -> dict[str, float]:
    """Measure the import of the Python functions, and the time until a wrong word is refused."""
    imports, refusals, commands = [], [], []
    for _ in range(TIMES):
        done = subprocess.run(
            [sys.executable, "-c", START], cwd=ROOT, check=True, capture_output=True, text=True
        )
        imported, refused = map(float, done.stdout.split())
        begun = time.perf_counter()
        subprocess.run([sys.executable, "run.py", "roundz=3"], cwd=ROOT, capture_output=True)
        commands.append(time.perf_counter() - begun)
        imports.append(imported)
        refusals.append(refused)
    found = {"import": imports, "wrong_word": refusals, "wrong_word_on_command_line": commands}
    return {name: round(median(each), 2) for name, each in found.items()}


def main() -> int:
    """Measure, and print JSON."""
    with tempfile.TemporaryDirectory() as folder:
        whole, stopped = Path(folder) / "whole", Path(folder) / "stopped"
        result: dict[str, Any] = {"start": start(), "runs": len(PRESETS) * SEEDS}
        result["sweep"] = round(timed(words(whole)), 1)
        result["report"] = round(timed(["-m", "edgewire.report", str(whole)]), 1)
        result["killed"] = killed(stopped)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
