"""Ends a sweep: with the table of its runs, and with a list of the failed jobs.

Jobs may run in other processes or on other machines, so each job writes a file into its folder.
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
from rich.console import Console

from command.caller import caller
from report.sweep_table import WIDTH, sweep_table
from simulation.early_stop import under_way
from simulation.processes import orderly_exit

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"  # runs jobs one after another
FAILED = "failed.json"
SKEW = 5.0  # seconds: the most that two machines' clocks may differ
_elsewhere = ExitStack()  # contexts that this process enters if other processes run the jobs


def note_failure(folder: Path, code: int, line: str) -> None:
    """Write a job's exit code and printed line into its folder."""
    (folder / FAILED).write_text(json.dumps({"code": code, "line": line}, indent=2) + "\n")


def forget_failure(folder: Path) -> None:
    """Remove the file that an earlier failed job has written into the folder."""
    (folder / FAILED).unlink(missing_ok=True)


class SweepEnd(Callback):
    """Prints the runs and the failed jobs of a sweep.

    `code`: the highest exit code of a job. `folder`: the folder of the last sweep.
    """

    code: ClassVar[int] = 0
    folder: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Store the start time, to ignore jobs of an earlier sweep in the same folder."""
        self._began = time.time() - SKEW
        if config.hydra.launcher["_target_"] != BASIC:
            _elsewhere.enter_context(under_way())
            _elsewhere.enter_context(orderly_exit())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print a table of the runs, the command for a larger one, and a line per failed job."""
        _elsewhere.close()
        top, lines = Path(config.hydra.sweep.dir), []
        SweepEnd.folder = top.absolute()
        found = sorted(top.rglob(".hydra/overrides.yaml"), key=lambda path: (len(str(path)), path))
        jobs = [path for path in found if path.stat().st_mtime >= self._began]
        for overrides in jobs:
            folder = overrides.parents[1]
            if (folder / FAILED).exists():
                note = json.loads((folder / FAILED).read_text())
                SweepEnd.code = max(SweepEnd.code, note["code"])
                given = " ".join(OmegaConf.load(overrides))
                lines.append(f"  {folder.relative_to(top)}: {given}: {note['line']}")
        if caller().python:
            return
        if table := sweep_table([overrides.parents[1] for overrides in jobs]):
            console = Console(width=WIDTH, highlight=False)
            console.print("", table, sep="\n")
            print(f"more columns: python -m report.table {top}")
        if lines:
            count = f"{len(lines)} of {len(jobs)} jobs failed or diverged, in {top}:"
            print("\n".join([count, *lines]), file=sys.stderr)
