"""Compares the wall time of an app's run on the local engine and in Flower's simulation (Ray).

    python -m papers.benchmarks.apps.any_app              # JSON on stdout, about two minutes
    python -m papers.benchmarks.apps.any_app APP --nodes 10 --cycles 5 --run-config
    'num-server-rounds=3'

The time is from the start of a Python process to its end. The local engine has one worker per core,
and Ray has one actor per core. The two runs alternate. Flower's simulation runs as with `flwr run`:
a SuperLink, a bundle of the app, Ray. But it does not install dependencies, which would take
minutes more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from edgewire.simulation.workers.limits import allowed_cores
from papers.benchmarks.timing import ROOT

QUICKSTART = ROOT / "tests" / "apps" / "quickstart_pytorch"
ON_RAY = """
import sys, tempfile
from pathlib import Path
from flwr.common.config import parse_config_args
from edgewire.engines.ray import run_on_ray
from edgewire.machine.job import Job
app, nodes, actors, text = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    job = Job(Path(app), parse_config_args([text]), int(nodes), Path(folder))
    run_on_ray(job, actors=int(actors))
"""


def seconds(command: list[str]) -> float:
    """Return the seconds that a command takes. Raises `CalledProcessError` if it fails."""
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Run both alternately and print JSON; `ratio` is the median over the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", type=Path, nargs="?", default=QUICKSTART)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--run-config", default="")
    parser.add_argument("--cycles", type=int, default=3)
    given = parser.parse_args()
    app, nodes, processes = str(given.app.resolve()), str(given.nodes), str(allowed_cores())
    here = ["-m", "edgewire.simulation", app, "--nodes", nodes, "--workers", processes]
    commands = {
        "local": [*here, "--run-config", given.run_config],
        "ray": ["-c", ON_RAY, app, nodes, processes, given.run_config],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(given.cycles):
        for name, command in commands.items():
            found[name].append(seconds([sys.executable, *command]))
            print(f"{name}: {found[name][-1]:.1f} s", file=sys.stderr)
    ratios = [ray / local for local, ray in zip(found["local"], found["ray"], strict=True)]
    result = {f"{name}_seconds": round(median(times), 1) for name, times in found.items()}
    print(json.dumps({**result, "ratio": round(median(ratios), 2)}, indent=2))


if __name__ == "__main__":
    main()
