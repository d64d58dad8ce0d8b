"""Shows the progress of runs, and of all jobs of a sweep, from the files that runs write.

So it works with every engine and with every launcher.
"""

from __future__ import annotations

import html
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os.path import getmtime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from edgewire.report.format import human_bytes, human_seconds
from edgewire.report.node_table import NODES
from edgewire.report.notebook_card import card, curve_svg
from edgewire.report.reader import GrowingFile, folders, readable, row_in
from edgewire.report.runs import (
    FAILED,
    HISTORY,
    HYDRA,
    OVERRIDES,
    Row,
    number,
    read_result,
    sent_bytes,
)
from edgewire.task.metric import ACCURACY, LOSS, Metric

MOST_POINTS = 800  # of a curve
FIRST_LINE = 10.0  # seconds
BETWEEN, LONGEST = 20.0, 600.0  # bounds in seconds of the pause between lines
SILENT = 60.0  # seconds without news that a line tells
SHOWN = 20  # running jobs that have a line each
VIEW = "EDGEWIRE_SWEEP_VIEW"  # set for jobs whose progress the sweep's own process shows
STARTING, RUNNING, FINISHED, STOPPED, BAD = "starting", "running", "finished", "stopped", "failed"
DIVERGED = "diverged"
DONE = (FINISHED, STOPPED, DIVERGED, BAD)
NEEDED = ("round", "rounds", "uplink_bytes", "downlink_bytes")  # numbers of a row


class RunProgress:
    """What a run's files say so far.

    `metrics`: the values of the model to follow, by importance; default: accuracy and loss. `row`:
    the newest row of the history; {} before the first. `values`: the last value of each metric by
    its name; only some rounds end with an evaluation. `points`: rounds and values of the first
    metric, of a long run a part. `state`: one of the constants above.
    """

    def __init__(self, folder: Path, *metrics: Metric) -> None:
        self.folder = folder
        self.row: Row = {}
        self.values: dict[str, float] = {}
        self.state = STARTING
        self._file = GrowingFile(folder / HISTORY)
        self.metrics = metrics or (ACCURACY, LOSS)
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
                first = self.metrics[0].name
                if _has(row, "round", first):
                    self.points.append((row["round"], row[first]))
            if len(self.points) > MOST_POINTS:
                self.points = [*self.points[:-1:2], self.points[-1]]
        self.state = self._state()

    @property
    def left(self) -> float | None:
        """The seconds left at the mean pace since the first row, if it runs; None if unknown."""
        if self.state != RUNNING:
            return None
        (began, first), (now, done) = (
            [number(row.get(key)) or 0.0 for key in ("seconds", "round")]
            for row in (self._first, self.row)
        )
        rounds = self.row.get("rounds", 0)
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
    def told(self) -> list[str]:
        """The newest row in words, with the first metric that has a value; [] before the first."""
        if not self.row:
            return []
        known = (metric for metric in self.metrics if metric.name in self.values)
        metric = next(known, self.metrics[0])
        measured = f"{metric.name} {metric.text(self.values.get(metric.name))}"
        up, down = (human_bytes(sent_bytes(self.row, f"{way}link") or 0) for way in ("up", "down"))
        done = f"round {self.row['round']} of {self.row['rounds']}"
        return [done, measured, f"up {up}, down {down}"]

    @property
    def rest(self) -> list[str]:
        """The time left in words; [] if it is unknown."""
        return [] if self.left is None else [f"about {human_seconds(round(self.left))} left"]


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
    metric: Metric = ACCURACY,
    title: str = "",
) -> Iterator[None]:
    """In this context, show the progress of the run that writes its files to `folder`.

    On a terminal it shows a bar. In a log (`nohup`, ssh, batch), and if other runs print at the
    same time (`shared`), it prints lines: the first after ten seconds, the next ones after longer
    and longer pauses. `name`: the prefix of a line. `metric`: the value of the model to show.
    `title`: what is trained; a notebook shows it, and the curve so far.
    """
    run = RunProgress(folder, metric)
    if console.is_jupyter and not console.quiet:
        with _beside(_follow, _in_notebook(run, rounds, name, title), 0.5):
            yield
        return
    if shared or not console.is_terminal:
        with _beside(_print, run, rounds, name, console):
            yield
        return
    line = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(20), line, console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds)

        def move(passed: float, over: bool) -> None:
            line = progress_line(run, passed, rounds)
            at, of = run.row.get("round", 0), run.row.get("rounds", rounds)
            progress.update(task, description=line, completed=at, total=of)

        with _beside(_follow, move, 0.25):
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


def _follow(done: threading.Event, show: Callable[[float, bool], None], pause: float) -> None:
    """Call `show` after each `pause` seconds, and a last time when the run is done.

    It gets the seconds so far, and whether the run is done.
    """
    began, over = time.monotonic(), False
    while not over:
        over = done.wait(pause)
        show(time.monotonic() - began, over)


def _in_notebook(
    run: RunProgress, rounds: int, name: str, title: str
) -> Callable[[float, bool], None]:
    """Return the function that shows what is trained, the curve so far, a bar and a line.

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
    return lambda passed, over: place.update(shown(passed, over))


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
    parts = run.told or [f"round 0 of {rounds}"]
    return f"{name}{', '.join([*parts, f'{human_seconds(round(passed))} so far', *run.rest])}"


# Several runs


class Jobs:
    """The runs below some folders, which need not exist yet.

    `since`: a Unix time; what began before belongs to an earlier sweep in the same folder.
    """

    def __init__(self, tops: Sequence[Path], since: float = 0.0) -> None:
        self._tops, self._since = tops, since
        self.runs: dict[Path, RunProgress] = {}

    def lines(self) -> Iterator[str]:
        """Yield how many runs are in each state, and then a line for each run that goes on.

        There are at most `SHOWN` such lines. The only run has a line in each state.
        """
        found = sorted(
            folder for top in self._tops for folder, names in folders(top)
            if (HYDRA.name in names or HISTORY in names)
            and (readable(getmtime, folder / OVERRIDES) or 0.0) >= self._since
        )  # fmt: skip
        self.runs = {f: self.runs.get(f) or RunProgress(f) for f in found}
        for run in self.runs.values():
            run.update()
        if len(found) > 1:
            states = Counter(run.state for run in self.runs.values())
            yield ", ".join(f"{count} {state}" for state, count in states.items())
        running = [run for run in self.runs.values() if run.state == RUNNING or len(found) == 1]
        yield from (_line(run, len(found) > 1) for run in running[:SHOWN])


def _line(run: RunProgress, named: bool) -> str:
    """Return how far a run is, in one line. `named`: whether it begins with the folder's name."""
    parts = [f"{run.folder.name} {run.state}" if named else run.state, *run.told, *run.rest]
    found = [readable(getmtime, run.folder / name) for name in (HISTORY, NODES)]
    silence = time.time() - max((each for each in found if each is not None), default=math.inf)
    if run.state == RUNNING and silence > SILENT:  # it may be dead, or in a long round
        parts.append(f"nothing was written for {human_seconds(silence)}")
    return ", ".join(parts)


@contextmanager
def sweep_progress(top: Path, began: float, console: Console) -> Iterator[None]:
    """In this context, show the jobs below `top` on a terminal, and keep the jobs from printing.

    `began`: the Unix time since which a folder is a job of this sweep.
    """
    jobs = Jobs([top], began)
    live = Live(
        get_renderable=lambda: Text("\n".join(jobs.lines())),
        console=console,
        refresh_per_second=1,
        transient=True,
    )
    with silent_jobs(), live:
        yield


@contextmanager
def silent_jobs() -> Iterator[None]:
    """In this context, jobs in other processes print nothing."""
    os.environ[VIEW] = "1"
    try:
        yield
    finally:
        os.environ.pop(VIEW, None)
