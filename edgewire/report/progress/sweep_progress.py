"""Shows the progress of all jobs of a parallel sweep in one table on the terminal.

It follows the files that jobs write below the sweep's folder, so it works with every launcher.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edgewire.report.files.reader import readable
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.metric import ACCURACY, LOSS
from edgewire.report.progress.run_progress import NewestRow, Pace
from edgewire.report.runs import (
    FAILED,
    HISTORY,
    OVERRIDES,
    RESULT,
    Row,
    override_words,
    read_result,
)

VIEW = "EDGEWIRE_SWEEP_VIEW"  # set for jobs whose progress the sweep's own process shows
BEFORE_ROWS = 6  # lines of the terminal that the table's head, its title and the prompt need
STARTING, RUNNING, FINISHED, STOPPED, BAD = "starting", "running", "finished", "stopped", "failed"
DIVERGED = "diverged"
DONE = (FINISHED, STOPPED, DIVERGED, BAD)
HEADS = {"state": 8, "round": 10, "metric": 7, "up": 7, "down": 7, "left": 6}  # with least widths


@contextmanager
def sweep_progress(
    top: Path, began: float, console: Console, jobs: int | None = None, every: float = 1.0
) -> Iterator[SweepView]:
    """In this context, show the jobs below `top` on a terminal, and keep the jobs from printing.

    `began`: the Unix time since which a folder is a job of this sweep; `jobs`: their number, None
    if it is unknown; `every`: seconds between two looks at the files.
    """
    view = SweepView(top, began, jobs)
    live = Live(
        get_renderable=lambda: view.table(console.height - BEFORE_ROWS),
        console=console,
        refresh_per_second=1 / every,
        transient=True,
    )
    with silent_jobs(), live:
        yield view


@contextmanager
def silent_jobs() -> Iterator[None]:
    """In this context, jobs in other processes print nothing."""
    os.environ[VIEW] = "1"
    try:
        yield
    finally:
        os.environ.pop(VIEW, None)


@dataclass
class SweepJob:
    """A job of the sweep: its folder, its overrides, and what its files say."""

    folder: Path
    overrides: list[str]
    state: str = STARTING
    row: Row = field(default_factory=dict)
    left: float | None = None  # seconds
    measured: str = NOTHING

    def __post_init__(self) -> None:
        file = self.folder / HISTORY
        self._tails = {metric: NewestRow(file, metric.name) for metric in (ACCURACY, LOSS)}
        self._pace = Pace()

    def update(self, now: float) -> None:
        """Read the job's new rows; `now`: seconds of any clock."""
        for tail in self._tails.values():
            self.row = tail.last() or self.row
        accuracy, loss = (self._tails[metric].measured for metric in (ACCURACY, LOSS))
        if accuracy is not None:
            self.measured = ACCURACY.text(accuracy)
        elif loss is not None:
            self.measured = f"loss {LOSS.text(loss)}"
        self.state = self._state()
        self.left = self._pace.left(now, self.row) if self.row and self.state == RUNNING else None

    def _state(self) -> str:
        result = readable(read_result, self.folder) or {}
        if result.get("diverged"):
            return DIVERGED
        if (self.folder / FAILED).exists():
            return BAD
        if not result:
            return RUNNING if self.row else STARTING
        return FINISHED if not result.get("stopped") else STOPPED


class SweepView:
    """Makes the table of a sweep's jobs; the arguments are those of `sweep_progress`."""

    def __init__(self, top: Path, began: float, jobs: int | None = None) -> None:
        self._top, self._began, self._count = top, began, jobs
        self._jobs: dict[Path, SweepJob] = {}
        self._start = time.monotonic()

    def jobs(self) -> list[SweepJob]:
        """Return the jobs that have begun, in the order of their numbers, after a look at files."""
        now = time.monotonic() - self._start
        for file in self._top.glob(f"*/{OVERRIDES}"):
            folder = file.parents[1]
            if folder not in self._jobs and file.stat().st_mtime >= self._began:
                self._jobs[folder] = SweepJob(folder, readable(override_words, folder) or [])
        for job in self._jobs.values():
            if job.state not in DONE[:1] or not (job.folder / RESULT).exists():
                job.update(now)
        return sorted(self._jobs.values(), key=lambda job: (len(job.folder.name), job.folder.name))

    def table(self, rows: int) -> Table:
        """Return the table with at most `rows` jobs: those that run, then the newest others."""
        jobs = self.jobs()
        table = Table(box=None, padding=(0, 2, 0, 0), title=self._title(jobs), title_justify="left")
        table.add_column("job", justify="right", min_width=3)
        table.add_column("overrides", no_wrap=True, overflow="ellipsis", ratio=1)
        for head, width in HEADS.items():
            side: JustifyMethod = "left" if head == "state" else "right"
            table.add_column(head, justify=side, no_wrap=True, min_width=width)
        common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
        active = [job for job in jobs if job.state not in DONE]
        others = [job for job in jobs if job.state in DONE]
        room = max(rows, 1)
        shown = active[:room]
        shown += others[len(others) - min(len(others), room - len(shown)) :]
        for job in sorted(shown, key=jobs.index):
            row = job.row
            done = f"{row['round']} of {row['rounds']}" if row else NOTHING
            sent = [
                human_bytes(row[f"{way}link_bytes"]) if row else NOTHING for way in ("up", "down")
            ]
            left = NOTHING if job.left is None else human_seconds(round(job.left))
            own = " ".join(word for word in job.overrides if word not in common)
            cells = [job.folder.name, own, job.state, done, job.measured, *sent, left]
            table.add_row(*(Text(cell) for cell in cells))  # text of users is no markup
        return table

    def _title(self, jobs: Sequence[SweepJob]) -> str:
        counts = Counter(job.state for job in jobs)
        done = sum(counts[state] for state in DONE)
        total = "" if self._count is None else f" of {self._count}"
        passed = time.monotonic() - self._start
        parts = [f"{done}{total} jobs done", f"{len(jobs) - done} running"]
        bad = counts[BAD] + counts[DIVERGED]
        parts += [f"{bad} failed or diverged"] if bad else []
        parts.append(f"{human_seconds(round(passed))} so far")
        if self._count and done and done < self._count:
            parts.append(f"about {human_seconds(round(passed / done * (self._count - done)))} left")
        return ", ".join(parts)
