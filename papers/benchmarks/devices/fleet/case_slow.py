"""A run at a server with a share of a core: `... devices.fleet slow --share 0.05`, as root.

The server and the processes that it starts get this share of one core, by a control group. The
result has the number of processes that were started for the ServerApp, the seconds until round 1
has ended, and run.py's warnings.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgewire.machine.errors import UsageError
from tests.deploy.processes import descendants
from tests.system.fault_field import Field, TheRun

GROUPS = Path("/sys/fs/cgroup/cpu")  # control groups, version 1
PERIOD = 100_000  # microseconds
WORDS = ["algorithm=fedavg_f2i", "dataset=digits", "model=mlp", "rounds=1"]


@contextmanager
def share_of_core(share: float, process: int) -> Iterator[None]:
    """Within this context a process and its descendants get a share of one core.

    Raises `UsageError` if this machine has no such control groups, or does not let this user.
    """
    group = GROUPS / f"edgewire-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text(f"{share * PERIOD:.0f}")
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD}")
        for each in [process, *descendants(process)]:
            (group / "cgroup.procs").write_text(f"{each}")
    except OSError as error:
        raise UsageError(f"{group} cannot be used ({error.strerror}): run this as root") from error
    try:
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (GROUPS / "cgroup.procs").write_text(left)
        group.rmdir()


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="slow", description=__doc__)
    parser.add_argument("--share", type=float, default=0.05, help="the server's share of a core")
    parser.add_argument("--most", type=float, default=900.0, help="seconds, after which it stops")
    args = parser.parse_args(words)
    started = set[int]()
    with tempfile.TemporaryDirectory() as name, Field(Path(name), 2) as field:
        with share_of_core(args.share, field.server.pid):
            began = time.monotonic()
            run = TheRun(field, "run", WORDS)
            while not run.over and not run.rounds and time.monotonic() < began + args.most:
                started |= {field.serverapp()} - {0}
                time.sleep(0.1)
            seconds = time.monotonic() - began
        said = field.said("run.log").splitlines()
        return {
            "processes": len(started),
            "rounds": run.rounds,
            "seconds": round(seconds, 1),
            "said": [line for line in said if "starting" in line or "SuperLink" in line],
        }
