"""Measures a device's start: the time until it is online and until it replies, and its memory.

    python -m papers.benchmarks.devices.first_reply                  # JSON on stdout; two minutes
    python -m papers.benchmarks.devices.first_reply --python ENV/bin/python --overrides
    'model=lenet5'

A run of eSGD continues during the whole benchmark, with TLS and authenticated nodes. The benchmark
kills its node and starts it again. `again`: the node has the app on its disk. `fresh`: the node has
no app, and downloads and unpacks it first. `--python` is the interpreter of an environment with
the packages of a device (`pip install './compression[node]'`, torch for the CPU alone). After the
first start, files may be in the system's disk cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from edgewire.deploy.device.throttled_log import SERVER_INFORMED
from edgewire.machine.errors import UsageError
from papers.benchmarks.devices.cases import printed
from papers.benchmarks.devices.fault_kinds import copy_digits
from tests.deploy.processes import eventually
from tests.system.fault_field import Field, TheRun

PROGRAM = ("-m", "papers.benchmarks.devices.timed_node")
REPLIES = 50  # the memory is measured after this many replies
OVERRIDES = "model=lenet5 dataset=digits dataset.size=28"


def data_of(field: Field) -> str:
    """Return the folder of the node's data: $EDGEWIRE_DATA, or else a folder with the digits."""
    folder = field.folder / "data"
    if "EDGEWIRE_DATA" in os.environ:
        return os.environ["EDGEWIRE_DATA"]
    if not folder.exists():
        folder.mkdir()
        copy_digits(folder)
    return str(folder)


def started(field: Field, python: str, fresh: bool) -> dict[str, float]:
    """Kill the node and start it again; return its seconds to be online and to reply, and its MB.

    `fresh`: remove the node's app first. The MB are the node's peak memory after `REPLIES` replies.
    """
    field.nodes[0].kill()
    field.nodes[0].wait()
    times = field.folder / "times"
    times.unlink(missing_ok=True)
    if fresh:
        shutil.rmtree(field.state(0) / "apps")
    before, began = field.told(0).count("online at"), time.monotonic()
    field.begin_node(0, PROGRAM, python, EDGEWIRE_TIMED=str(times), EDGEWIRE_DATA=data_of(field))
    eventually(lambda: field.told(0).count("online at") > before)
    online = time.monotonic() - began
    # The first reply may be one that the killed process had computed but not sent.
    eventually(lambda: times.exists() and times.read_text().count("\n") > 1)
    reply = time.monotonic() - began
    eventually(lambda: times.read_text().count("\n") > REPLIES or SERVER_INFORMED in field.told(0))
    if SERVER_INFORMED in field.told(0):
        raise UsageError(field.told(0).splitlines()[-1])
    status = Path(f"/proc/{field.nodes[0].pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1000
    return {"onlink_seconds": online, "reply_seconds": reply, "peak_megabytes": peak}


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Start the node repeatedly; return median and maximum of its times and its peak memory."""
    found: dict[str, list[dict[str, float]]] = {"fresh": [], "again": []}
    with tempfile.TemporaryDirectory() as name, Field(Path(name), 1) as field:
        overrides = ["algorithm=esgd", "rounds=1000000", "eval_every=1000000", "timeout=600"]
        run = TheRun(field, "run", overrides + args.overrides.split())
        eventually(run.has_begun)
        if run.over:
            raise UsageError((field.folder / "run.log").read_text().splitlines()[-1])
        for _ in range(args.count):
            for kind, taken in found.items():
                taken.append(started(field, args.python, kind == "fresh"))
        run.process.terminate()
        run.process.wait()
    report: dict[str, Any] = {"overrides": args.overrides, "count": args.count}
    for kind, taken in found.items():
        columns = {key: [each[key] for each in taken] for key in taken[0]}
        report[kind] = {k: [round(median(c), 2), round(max(c), 2)] for k, c in columns.items()}
    return report


def main() -> int:
    """Print median and maximum of the node's times and of its peak memory; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of the node (default: this one)")
    parser.add_argument("--overrides", default=OVERRIDES, help="of the run (%(default)s)")
    parser.add_argument("--count", type=int, default=5)
    args = parser.parse_args()
    return printed(lambda: measured(args))


if __name__ == "__main__":
    sys.exit(main())
