"""What a server keeps and logs: `python -m papers.benchmarks.devices.fleet keep`.

A server with `--keep-runs 30d --keep-apps 10` makes a run of eSGD with two nodes. Then it has the
folders of this run and of its app a hundred times, each a day older than the one before, and is
started again. One of the old runs has a checkpoint. The result has the folders that are left, and
the growth of the server's log: in bytes a day at the rate of this run, which run.py follows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.deploy.processes import eventually
from tests.system.fault_field import Field, TheRun

DAY = 86400


class Keeping(Field):
    """A field whose server removes what is old, and has Flower's home in its folder."""

    def begin_server(self) -> None:
        """Start the server, and wait until it listens."""
        where = ["--keys", str(self.keys), "--state", str(self.folder / "superlink")]
        home = self.environment.pop("FLWR_HOME")
        kept = ["--keep-runs", "30d", "--keep-apps", "10"]
        self.server = self.serve(["--host", "127.0.0.1", *where, *kept])
        self.environment["FLWR_HOME"] = home


def multiplied(folder: Path, count: int, name: str) -> None:
    """Copy the only folder in `folder`, each copy a day older; `name`: a format of their names."""
    (first,) = folder.iterdir()
    now = time.time()
    for number in range(1, count):
        copy = folder / name.format(number)
        shutil.copytree(first, copy)
        for each in (*copy.iterdir(), copy):
            os.utime(each, (now - number * DAY,) * 2)


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="keep", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, Keeping(Path(name), 2) as field:
        log, state = field.folder / "server.log", field.folder / "superlink"
        run = TheRun(field, "run", ["algorithm=esgd", f"rounds={args.rounds}"])
        eventually(run.has_begun)
        began, before, rounds = time.monotonic(), log.stat().st_size, run.rounds
        eventually(lambda: run.rounds >= args.rounds - 5 or run.over)
        rate = (log.stat().st_size - before) / (time.monotonic() - began)
        rounds = run.rounds - rounds
        eventually(run.has_ended)
        field.server.terminate()
        field.server.wait()
        multiplied(state / "runs", args.runs, "old-{}")
        multiplied(state / "flwr" / "apps", args.runs, "edgewire.edgewire.0.1.0.{:08x}")
        (state / "runs" / f"old-{args.runs - 1}" / "checkpoint").touch()
        field.begin_server()
        apps, runs = state / "flwr" / "apps", state / "runs"
        eventually(lambda: len(list(apps.iterdir())) <= 10, 600)
        time.sleep(2)
        return {
            "runs": args.runs,
            "runs_left": len(list(runs.iterdir())),
            "unfinished_left": (runs / f"old-{args.runs - 1}").exists(),
            "apps_left": len(list(apps.iterdir())),
            "rounds_logged": rounds,
            "log_bytes_a_day": round(rate * DAY),
        }
