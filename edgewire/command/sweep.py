"""A sweep's jobs: which are kept, resumed or run again, and the table of their runs at the end.

Jobs may run in other processes or on other machines, so each job writes a file into its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from edgewire.command.exit import CALLER, clear_errors
from edgewire.command.run_lock import SWEEP_LOCK, run_lock
from edgewire.command.saved_config import continues, resumes
from edgewire.conf.schema import ConfigError
from edgewire.machine.job import PLACE
from edgewire.machine.processes import orderly_exit
from edgewire.machine.startup_signals import under_way
from edgewire.report.format import human_seconds
from edgewire.report.progress import VIEW, silent_jobs, sweep_progress
from edgewire.report.reader import readable
from edgewire.report.runs import FAILED, OVERRIDES, read_run
from edgewire.report.table import WIDTH, sweep_table
from edgewire.strategy.run.checkpoint_file import FILE as CHECKPOINT
from edgewire.strategy.run.checkpoint_file import read
from edgewire.strategy.run.whole_files import replace_file

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"  # runs jobs one after another
BEGUN = "begun.json"  # in a job's folder: which configuration it runs
NOT_BEGUN = "not_begun"  # in a job's folder: the sweep was stopped before
STOPPED = "stopped"  # in a sweep's folder: after a failure no further job begins
SKEW = 5.0  # seconds: the most that two machines' clocks may differ
REFUSED = ".refused"  # in a sweep's folder: notes of jobs whose folders other processes write
SWEEP = ExitStack()  # what this process holds during a sweep; after Ctrl-C the command closes it


def note_failure(folder: Path, code: int, line: str, *, stop: bool) -> None:
    """Write a job's exit code and printed line into its folder.

    `stop`: whether the jobs of this sweep that have not begun end at once, on all machines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / FAILED, json.dumps({"code": code, "line": line}, indent=2), "\n")
    if stop:
        (Path(HydraConfig.get().sweep.dir) / STOPPED).touch()


def begin_job(folder: Path, config: str) -> bool:
    """Note which configuration a job runs; return whether an earlier job left its result there.

    Only a job of a continued sweep may have such a result: of a run that has finished or diverged
    with the same configuration. `config`: the run's configuration as JSON. If the folder holds a
    checkpoint of another configuration, or a damaged one, the checkpoint is removed.
    """
    hydra = HydraConfig.get()
    mark, number = fingerprint(config), hydra.job.num if hydra.mode is RunMode.MULTIRUN else 0
    if continues():
        begun = folder / BEGUN
        same = begun.is_file() and mark in begun.read_text(errors="replace")
        if same and (run := readable(read_run, folder)) is not None:
            ended = "diverged" if run.diverged else "finished"
            say(f"job {number}: not run again: it has {ended}")
            return True
        if resumes() and not (same and _usable(folder, number)):
            for name in (CHECKPOINT, PLACE):
                (folder / name).unlink(missing_ok=True)
    (folder / FAILED).unlink(missing_ok=True)
    if hydra.mode is RunMode.MULTIRUN:
        replace_file(folder / BEGUN, json.dumps({"configuration": mark}), "\n")
    return False


def say(line: str) -> None:
    """Print a line of a job, unless the sweep's own process shows the jobs."""
    if VIEW not in os.environ:
        print(line)


def fingerprint(config: str) -> str:
    """Return the SHA-256 of a configuration (JSON), without options that change no result."""
    plain = json.loads(config)
    for key in ("verbose", "checkpoint_every"):
        plain.pop(key, None)
    plain["engine"] = plain.get("engine", {}).get("_target_")
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _usable(folder: Path, number: int) -> bool:
    if (folder / PLACE).is_file():  # the checkpoint is at a SuperLink
        return True
    try:
        read(folder)
    except ConfigError as error:
        say(f"job {number}: it starts again, without its checkpoint: {error}")
        return False
    return True


def may_begin(folder: Path) -> bool:
    """Return whether this job's sweep goes on; if it was stopped, note it in the job's folder."""
    (folder / NOT_BEGUN).unlink(missing_ok=True)
    stopped = (Path(HydraConfig.get().sweep.dir) / STOPPED).exists()
    if stopped:
        (folder / NOT_BEGUN).touch()
    return not stopped


def count_jobs(config: DictConfig) -> int | None:
    """Return the number of a sweep's jobs; None if its options are wrong."""
    from edgewire.conf.sweeper import jobs_of  # here, because it searches all plugins

    with suppress(Exception):  # the sweeper itself reports the mistake
        line = OverridesParser.create().parse_overrides(config.hydra.overrides.task)
        return len(jobs_of(config.hydra.sweeper, line))
    return None


class SweepEnd(Callback):
    """Prints the runs and the failed jobs of a sweep.

    `code`: the highest exit code of a job. `folder`: the folder of the last sweep. `jobs`: the
    folders of its jobs. `total`: their number; None if it is unknown. `common`: the overrides of
    all jobs. `began`: the Unix time of the sweep's start.
    """

    code: ClassVar[int] = 0
    folder: ClassVar[Path | None] = None
    jobs: ClassVar[list[Path]] = []
    total: ClassVar[int | None] = None
    common: ClassVar[set[str]] = set()
    began: ClassVar[float] = 0.0

    @classmethod
    def line(cls, number: int, overrides: Sequence[str], said: str) -> str:
        """Return a line on job `number`, from 0 on, which is done; `said`: its main metric."""
        own = " ".join(word for word in overrides if word not in cls.common)
        done, of, left = number + 1, "", ""
        if cls.total is not None:
            seconds = (time.time() - cls.began) / done * (cls.total - done)
            of = f" of {cls.total}"
            left = f" (about {human_seconds(round(seconds))} left)" * (done < cls.total)
        return f"run {done}{of} is done: {own}: {said}{left}"

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Lock the sweep's folder; store the start time, to ignore jobs of an earlier sweep there.

        Raises `Failed` if another process has the lock, because Hydra catches other errors.
        """
        self._began, top = time.time() - SKEW, Path(config.hydra.sweep.dir)
        with clear_errors():
            SWEEP.enter_context(run_lock(top, SWEEP_LOCK))
        SweepEnd.total, SweepEnd.began = count_jobs(config), time.time()
        SweepEnd.common = set(config.hydra.overrides.task)
        (top / STOPPED).unlink(missing_ok=True)
        shutil.rmtree(top / REFUSED, ignore_errors=True)
        if config.hydra.launcher["_target_"] != BASIC:
            SWEEP.enter_context(under_way())
            SWEEP.enter_context(orderly_exit())
            console = Console(highlight=False)
            if console.is_terminal:
                SWEEP.enter_context(sweep_progress(top, self._began, console))
            elif CALLER.python:
                SWEEP.enter_context(silent_jobs())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print a table of the runs, the command for a larger one, and a line per failed job."""
        SWEEP.close()
        top, lines, waiting = Path(config.hydra.sweep.dir), [], 0
        SweepEnd.folder, SweepEnd.jobs = top.absolute(), []
        found = sorted(top.rglob(str(OVERRIDES)), key=lambda path: (len(str(path)), path))
        jobs = [path for path in found if path.stat().st_mtime >= self._began]
        refused = [note / OVERRIDES for note in sorted(top.glob(f"{REFUSED}/*"))]
        for overrides in [*jobs, *refused]:
            folder = overrides.parents[1]
            SweepEnd.jobs.append(folder.absolute())
            if (folder / NOT_BEGUN).exists():
                waiting += 1
            elif (folder / FAILED).exists():
                note = json.loads((folder / FAILED).read_text())
                SweepEnd.code = max(SweepEnd.code, note["code"])
                given = " ".join(OmegaConf.load(overrides)) if overrides.exists() else "not run"
                lines.append(f"  {folder.relative_to(top)}: {given}: {note['line']}")
        if CALLER.python:
            return
        if table := sweep_table([overrides.parents[1] for overrides in jobs]):
            console = Console(width=WIDTH, highlight=False)
            console.print("", table, sep="\n")
            print(f"pictures and more: python -m edgewire.report {top}")
        if lines:
            count = f"{len(lines)} of {len(SweepEnd.jobs)} jobs failed or diverged, in {top}:"
            print("\n".join([count, *lines]), file=sys.stderr)
        if waiting:
            again = shlex.quote(f"continue={top.absolute()}")
            print(
                f"stop_on_failure=true: {waiting} of {len(jobs)} jobs were not begun: "
                f"`python run.py {again}` runs them",
                file=sys.stderr,
            )
