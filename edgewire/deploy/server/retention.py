"""Removes the folders of old runs and of old apps, when the server starts and then each day."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from edgewire.machine.job import CHECKPOINT

DAY = 86400.0  # seconds


def each_day(*given: Any) -> NoReturn:
    """Call `remove_old` now and each day; a folder that cannot be removed stays until then."""
    while True:
        with suppress(OSError):
            remove_old(*given)
        time.sleep(DAY)


def remove_old(runs: Path, apps: Path, days: float | None, most: int | None, state: Any) -> None:
    """Remove old folders, but no unfinished run, and no app that a run of `state` still needs.

    `days`: the age from which a finished run is removed. The newest run tells the time, because the
    machine's clock may be wrong. `most`: the number of apps to keep. None: all are kept.
    """
    if days is not None:
        ends = {each: end for each in runs.glob("*/") if (end := _end(each)) is not None}
        newest = max(ends.values(), default=0.0)
        for each in [each for each, end in ends.items() if end < newest - days * DAY]:
            shutil.rmtree(each, ignore_errors=True)
    if most is not None:
        found = sorted(apps.glob("*/"), key=lambda each: each.stat().st_mtime, reverse=True)
        going = [run for run in state.get_run_info() if run.status.status != "finished"]
        for each in found[most:]:
            start = each.name.rpartition(".")[2]  # the first digits of the app's SHA-256
            if not any(run.fab_hash.startswith(start) for run in going):
                shutil.rmtree(each, ignore_errors=True)


def _end(run: Path) -> float | None:
    """Return when a run has finished, in seconds since 1970; None if it has not."""
    result = run / "result.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        if json.loads(result.read_text())["ended"] == "finished":
            return None if (run / CHECKPOINT).exists() else result.stat().st_mtime
    return None
