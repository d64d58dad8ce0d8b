"""Shows the progress of runs, and of all jobs of a sweep, from the files that runs write.

So it works with every engine and with every launcher.
"""

from __future__ import annotations

import html
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.metric import ACCURACY, LOSS, MainMetric
from edgewire.report.notebook_card import card, curve_svg
from edgewire.report.reader import GrowingFile, readable, row_in
from edgewire.report.runs import (
    FAILED,
    HISTORY,
    OVERRIDES,
    RESULT,
    Row,
    number,
    override_words,
    read_result,
)

MOST_POINTS = 800  # of a curve
FIRST_LINE = 10.0  # seconds
BETWEEN, LONGEST = 20.0, 600.0  # bounds in seconds of the pause between lines
VIEW = "EDGEWIRE_SWEEP_VIEW"  # set for jobs whose progress the sweep's own process shows
BEFORE_ROWS = 6  # lines of the terminal that the table's head, its title and the prompt need
STARTING, RUNNING, FINISHED, STOPPED, BAD = "starting", "running", "finished", "stopped", "failed"
DIVERGED = "diverged"
DONE = (FINISHED, STOPPED, DIVERGED, BAD)
HEADS = {"state": 8, "round": 10, "metric": 7, "up": 7, "down": 7, "left": 6}  # with least widths
NEEDED = ("round", "rounds", "uplink_bytes", "downlink_bytes")  # numbers of a row


class RunProgress:
    """What a run's files say so far. `metrics`: the values of the model to follow, by importance.

    `row`: the newest row of the history; {} before the first. `values`: the last value of each
    metric by its name; only some rounds end with an evaluation. `points`: rounds and values of the
    first metric, of a long run a part. `left`: the estimated seconds until
    the end of a run that goes on; None if they are unknown. `state`: one of the constants above.
    """

    def __init__(self, folder: Path, *metrics: MainMetric) -> None:
        self.folder = folder
        self.row: Row = {}
        self.values: dict[str, float] = {}
        self.left: float | None = None
        self.state = STARTING
        self._file = GrowingFile(folder / HISTORY)
        self.metrics = metrics
        self.points: list[tuple[float, float]] = []
        self._first: Row = {}

    def update(self) -> None:
        """Read the new rows and the state."""
        with suppress(OSError, ValueError):  # the file cannot be read now: the next call may
            for line in self._file.lines():
                row = row_in(line)
                if _has(row, *NEEDED):
                    self.row, self._first = row, self._first or row
                # an earlier run's history has other metrics
                names = (metric.name for metric in self.metrics)
                self.values |= {name: row[name] for name in names if _has(row, name)}
                main = [metric.name for metric in self.metrics[:1]]
                if _has(row, "round", *main):
                    self.points += [(row["round"], row[name]) for name in main]
            if len(self.points) > MOST_POINTS:
                self.points = [*self.points[:-1:2], self.points[-1]]
        self.state = self._state()
        self.left = self._left() if self.state == RUNNING else None

    def _left(self) -> float | None:
        """Return the seconds left at the mean pace since the first row; None before the second."""
        (began, first), (now, done) = (
            [number(row.get(key)) or 0.0 for key in ("seconds", "round")]
            for row in (self._first, self.row)
        )
        rounds = self.row["rounds"]
        if not first < done < rounds or now <= began:
            return None
        return float((rounds - done) * (now - began) / (done - first))

    def _state(self) -> str:
        result = readable(read_result, self.folder) or {}
        if result.get("diverged"):
            return DIVERGED
        if (self.folder / FAILED).exists():
            return BAD
        if not result:
            return RUNNING if self.row else STARTING
        return FINISHED if not result.get("stopped") else STOPPED

    @property
    def measured(self) -> str:
        """The last value of the first metric that has one; of another metric with its name."""
        for metric in self.metrics:
            if (value := self.values.get(metric.name)) is not None:
                name = "" if metric is self.metrics[0] else f"{metric.name} "
                return f"{name}{metric.text(value)}"
        return NOTHING

    def sent(self) -> list[str]:
        """Return the bytes sent up and down as text."""
        return [
            human_bytes(self.row[f"{way}link_bytes"]) if self.row else NOTHING
            for way in ("up", "down")
        ]


def _has(row: Row, *keys: str) -> bool:
    return all(number(row.get(key)) is not None for key in keys)


# One run


@contextmanager
def run_progress(
    folder: Path,
    rounds: int,
    console: Console,
    *,
    shared: bool = False,
    name: str = "",
    metric: MainMetric = ACCURACY,
    title: str = "",
) -> Iterator[None]:
    """In this context, show the progress of the run that writes its files to `folder`.

    On a terminal it shows a bar. In a log (`nohup`, ssh, batch), and if other runs print at the
    same time (`shared`), it prints lines: the first after ten seconds, the next ones after longer
    and longer pauses. `name`: the prefix of a line. `metric`: the value of the model to show.
    `title`: what is trained; a notebook shows it, and the curve so far.
    """
    if console.is_jupyter and not console.quiet:
        with _beside(_in_notebook, RunProgress(folder, metric), rounds, name, title):
            yield
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{metric.name} {{task.fields[measured]}}"),
        TextColumn("up {task.fields[up]}  down {task.fields[down]}"),
        TextColumn("left"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        disable=shared or not console.is_terminal,
        transient=True,
    ) as progress:
        if progress.disable:
            shown = _beside(_print, RunProgress(folder, metric), rounds, name, console)
        else:
            progress.add_task("round", total=rounds, measured="-", up="-", down="-")
            shown = _beside(_follow, RunProgress(folder, metric), progress)
        with shown:
            yield


@contextmanager
def _beside(show: Callable[..., None], *arguments: object) -> Iterator[None]:
    """In this context, `show` runs in a thread; its first argument is set when it must end."""
    done = threading.Event()
    thread = threading.Thread(target=show, args=(done, *arguments), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _in_notebook(
    done: threading.Event, run: RunProgress, rounds: int, name: str, title: str
) -> None:
    """Show what is trained, the curve so far, a bar and a line below a cell, twice a second.

    At the end only the bar and the line stay: the cell's value shows the rest. Of a sweep's job
    (`name`) nothing stays.
    """
    from IPython.display import HTML, display

    def shown(passed: float, over: bool = False) -> HTML:
        if over and name:
            return HTML("")  # type: ignore[no-untyped-call]
        text = html.escape(progress_line(run, passed, rounds, name))
        at, of = run.row.get("round", 0), run.row.get("rounds", rounds)
        bar = f"<progress value='{at:d}' max='{max(of, 1):d}'></progress> {text}"
        if title and not over:
            bar = card(title, curve_svg(run.points, run.metrics[0]), end=f"<div>{bar}</div>")
        return HTML(bar)  # type: ignore[no-untyped-call]

    place = display(shown(0.0), display_id=True)  # type: ignore[no-untyped-call]
    began, over = time.monotonic(), False
    while not over:
        over = done.wait(0.5)
        place.update(shown(time.monotonic() - began, over))


def _follow(done: threading.Event, run: RunProgress, progress: Progress) -> None:
    """Move the bar four times a second, and a last time when the run is done."""
    (task,) = progress.task_ids
    over = False
    while not over:
        over = done.wait(0.25)
        run.update()
        if run.row:
            at, of = run.row["round"], run.row["rounds"]
            up, down = run.sent()
            progress.update(task, completed=at, total=of, measured=run.measured, up=up, down=down)


def _print(
    done: threading.Event, run: RunProgress, rounds: int, name: str, console: Console
) -> None:
    began, pause = time.monotonic(), FIRST_LINE
    while not done.wait(pause):
        passed = time.monotonic() - began
        if pause == FIRST_LINE:
            console.print(f"files in {run.folder}", soft_wrap=True)
        console.print(progress_line(run, passed, rounds, name), soft_wrap=True)
        pause = min(max(passed / 10, BETWEEN), LONGEST)


def progress_line(run: RunProgress, passed: float, rounds: int, name: str = "") -> str:
    """Return the line to show `passed` seconds after this process began the run.

    `rounds`: those of the run; `name`: the line's prefix.
    """
    run.update()
    parts = [f"round {run.row.get('round', 0)} of {run.row.get('rounds', rounds)}"]
    if run.row:
        up, down = run.sent()
        parts += [f"{run.metrics[0].name} {run.measured}", f"up {up}, down {down}"]
    parts.append(f"{human_seconds(round(passed))} so far")
    if run.left is not None:
        parts.append(f"about {human_seconds(round(run.left))} left")
    return f"{name}{', '.join(parts)}"


# A sweep


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


class SweepJob(RunProgress):
    """A job of a sweep: what its files say, and its overrides."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ACCURACY, LOSS)
        self.overrides = readable(override_words, folder) or []


class SweepView:
    """Makes the table of a sweep's jobs; the arguments are those of `sweep_progress`."""

    def __init__(self, top: Path, began: float, jobs: int | None = None) -> None:
        self._top, self._began, self._count = top, began, jobs
        self._jobs: dict[Path, SweepJob] = {}
        self._start = time.monotonic()

    def jobs(self) -> list[SweepJob]:
        """Return the jobs that have begun, in the order of their numbers, after a look at files."""
        for file in self._top.glob(f"*/{OVERRIDES}"):
            folder = file.parents[1]
            if folder not in self._jobs and file.stat().st_mtime >= self._began:
                self._jobs[folder] = SweepJob(folder)
        for job in self._jobs.values():
            if job.state != FINISHED or not (job.folder / RESULT).exists():
                job.update()
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
            done = f"{job.row['round']} of {job.row['rounds']}" if job.row else NOTHING
            left = NOTHING if job.left is None else human_seconds(round(job.left))
            own = " ".join(word for word in job.overrides if word not in common)
            cells = [job.folder.name, own, job.state, done, job.measured, *job.sent(), left]
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
