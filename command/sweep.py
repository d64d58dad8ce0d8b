"""Notes of a sweep's failed jobs, and their list at the sweep's end.

Jobs may run in other processes or on other machines, so they communicate by their folders alone.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from simulation.early_stop import under_way
from simulation.processes import orderly_exit

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"  # runs one job after another
FAILED = "failed.json"
SKEW = 5.0  # seconds by which the clocks of two machines may differ
_elsewhere = ExitStack()  # for a sweep whose jobs run in other processes


def note_failure(folder: Path, code: int, line: str) -> None:
    """Write a job's exit code and printed line into its folder."""
    (folder / FAILED).write_text(json.dumps({"code": code, "line": line}, indent=2) + "\n")


def forget_failure(folder: Path) -> None:
    """Remove an earlier job's note from the folder."""
    (folder / FAILED).unlink(missing_ok=True)


class SweepEnd(Callback):
    """Lists the failed jobs when all have ended; `code` is their worst exit code."""

    code: ClassVar[int] = 0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note the start time: the folder may hold jobs of an earlier sweep."""
        self._began = time.time() - SKEW
        if config.hydra.launcher["_target_"] != BASIC:
            _elsewhere.enter_context(under_way())
            _elsewhere.enter_context(orderly_exit())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print a line for each failed job."""
        _elsewhere.close()
        top, lines = Path(config.hydra.sweep.dir), []
        found = sorted(top.rglob(".hydra/overrides.yaml"), key=lambda path: (len(str(path)), path))
        jobs = [path for path in found if path.stat().st_mtime >= self._began]
        for overrides in jobs:
            folder = overrides.parents[1]
            if (folder / FAILED).exists():
                note = json.loads((folder / FAILED).read_text())
                SweepEnd.code = max(SweepEnd.code, note["code"])
                words = " ".join(OmegaConf.load(overrides))
                lines.append(f"  {folder.relative_to(top)}: {words}: {note['line']}")
        if lines:
            count = f"{len(lines)} of {len(jobs)} jobs failed or diverged, in {top}:"
            print("\n".join([count, *lines]), file=sys.stderr)
