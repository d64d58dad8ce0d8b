"""Pauses of the server's event loop: `python -m papers.benchmarks.devices.fleet gap --nodes 50`.

All nodes use every call with large bodies at once, over TLS: they download an app, get and send
payloads by this project's calls and by Flower's, and announce replies of many objects. The result
has, for each of these loads, the longest pause in seconds: `gap` on the clock and `cpu` in
processor time (module `probed_server`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.deploy.loaded import loaded


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="gap", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=8.0, help="of a payload")
    parser.add_argument("--names", type=int, default=2000, help="objects of an announced reply")
    args = parser.parse_args(words)
    report: dict[str, Any] = {"nodes": args.nodes, "megabytes": args.megabytes}
    with (
        tempfile.TemporaryDirectory() as name,
        loaded(Path(name), args.nodes, int(args.megabytes * 1e6)) as load,
    ):
        loads = {
            "apps": load.apps,
            "payloads": load.rounds,
            "names": lambda: load.names(args.names),
        }
        for what, call in loads.items():
            began = time.monotonic()
            call()
            seconds = time.monotonic() - began
            report[what] = {"seconds": round(seconds, 1), **load.most(began)}
    return report
