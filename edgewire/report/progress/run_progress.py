"""Shows a run's progress: it follows `history.jsonl` while the run writes it, on any engine."""

from __future__ import annotations

import html
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from edgewire.report.files.reader import GrowingFile, parse_json
from edgewire.report.format import human_bytes, human_seconds
from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.runs import HISTORY, Row

FIRST_LINE = 10.0  # seconds
BETWEEN, LONGEST = 30.0, 600.0  # bounds in seconds of the pause between lines


@contextmanager
def run_progress(
    folder: Path,
    rounds: int,
    console: Console,
    *,
    shared: bool = False,
    name: str = "",
    metric: MainMetric = ACCURACY,
) -> Iterator[None]:
    """In this context, show the progress of the run that writes its files to `folder`.

    On a terminal it shows a bar. In a log (`nohup`, ssh, batch), and if other runs print at the
    same time (`shared`), it prints lines: the first after ten seconds, the next ones after longer
    and longer pauses. `name`: the prefix of a line. `metric`: the value of the model to show.
    """
    if console.is_jupyter and not console.quiet:
        with _beside(_in_notebook, ProgressLine(folder, rounds, name, metric)):
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
            shown = _beside(_print, ProgressLine(folder, rounds, name, metric), folder, console)
        else:
            progress.add_task("round", total=rounds, measured="-", up="-", down="-")
            rows = NewestRow(folder / HISTORY, metric.name)
            shown = _beside(_follow, rows, folder, progress, metric)
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


def _in_notebook(done: threading.Event, line: ProgressLine) -> None:
    """Show a bar and a line below a notebook's cell, twice a second."""
    from IPython.display import HTML, display

    shown = display(HTML(line.html(0.0)), display_id=True)  # type: ignore[no-untyped-call]
    began, over = time.monotonic(), False
    while not over:
        over = done.wait(0.5)
        text = line.html(time.monotonic() - began)
        shown.update(HTML(text))  # type: ignore[no-untyped-call]


def _follow(
    done: threading.Event, rows: NewestRow, folder: Path, progress: Progress, metric: MainMetric
) -> None:
    """Move the bar four times a second, and a last time when the run is done."""
    (task,) = progress.task_ids
    over = False
    began: float | None = time.monotonic()
    while not over:
        over = done.wait(0.25)
        if began is not None and time.monotonic() - began > FIRST_LINE:
            progress.console.print(f"files in {folder}", soft_wrap=True)
            began = None
        if not (row := rows.last()):
            continue
        if rows.measured is not None:
            progress.update(task, measured=metric.text(rows.measured))
        progress.update(
            task,
            completed=row["round"],
            total=row["rounds"],
            up=human_bytes(row["uplink_bytes"]),
            down=human_bytes(row["downlink_bytes"]),
        )


def _print(done: threading.Event, line: ProgressLine, folder: Path, console: Console) -> None:
    began, pause = time.monotonic(), FIRST_LINE
    while not done.wait(pause):
        passed = time.monotonic() - began
        if pause == FIRST_LINE:
            console.print(f"files in {folder}", soft_wrap=True)
        console.print(line.line(passed), soft_wrap=True)
        pause = pause_after(passed)


def pause_after(seconds: float) -> float:
    """Return the seconds to wait before a log's next line: a tenth of the run's time, `seconds`.

    The pause is at least 30 and at most 600 seconds.
    """
    return min(max(seconds / 10, BETWEEN), LONGEST)


class ProgressLine:
    """Makes the progress lines of a run's log.

    `folder`: where the run writes its files; `rounds`: their number; `name`: a line's prefix;
    `metric`: the value of the model to show.
    """

    def __init__(
        self, folder: Path, rounds: int, name: str = "", metric: MainMetric = ACCURACY
    ) -> None:
        self._metric, self._rounds, self._name = metric, rounds, name
        self._rows = NewestRow(folder / HISTORY, metric.name)
        self._row: Row = {}
        self._pace = Pace()

    def line(self, passed: float) -> str:
        """Return the line to print `passed` seconds after this process began the run."""
        if row := self._rows.last():
            self._row = row
        parts = [f"round {self._row.get('round', 0)} of {self._row.get('rounds', self._rounds)}"]
        if self._row:
            up, down = (human_bytes(self._row[f"{way}link_bytes"]) for way in ("up", "down"))
            parts += [
                f"{self._metric.name} {self._metric.text(self._rows.measured)}",
                f"up {up}, down {down}",
            ]
        parts += [f"{human_seconds(round(passed))} so far", *self._left(passed)]
        return f"{self._name}{', '.join(parts)}"

    def html(self, passed: float) -> str:
        """Return a bar and the line (`line`) for a notebook."""
        text = html.escape(self.line(passed))
        done, of = self._row.get("round", 0), self._row.get("rounds", self._rounds)
        return f"<progress value='{done:d}' max='{max(of, 1):d}'></progress> {text}"

    def _left(self, passed: float) -> list[str]:
        left = self._pace.left(passed, self._row) if self._row else None
        return [] if left is None else [f"about {human_seconds(round(left))} left"]


class Pace:
    """Estimates the time that a run still takes, from the rounds since its first row."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None  # seconds and round of the first row

    def left(self, passed: float, row: Row) -> float | None:
        """Return the seconds that are left; None before the second row.

        `passed`: seconds on any clock; `row`: the newest row of the history.
        """
        if self._first is None:
            self._first = passed, row["round"]
        began, first = self._first
        if not first < row["round"] < row["rounds"] or passed <= began:
            return None
        return float((row["rounds"] - row["round"]) * (passed - began) / (row["round"] - first))


class NewestRow:
    """Reads a growing file of JSON lines, the history of a run.

    `measured`: the last value of the metric `name` so far, or None. Most lines have none, because
    only some rounds end with an evaluation.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._tail = GrowingFile(path)
        self._name, self._key = name, json.dumps(name).encode()
        self.measured: float | None = None

    def last(self) -> Row | None:
        """Return the last complete line written since the previous call, parsed; or None."""
        try:
            lines = list(self._tail.lines())
            row: Row = parse_json(lines[-1])
            for line in reversed(lines):
                # The folder may hold a history of an earlier run, with another metric.
                if self._key in line and (value := parse_json(line).get(self._name)) is not None:
                    self.measured = value
                    break
        except (IndexError, OSError, ValueError):  # no line, or a part of a line after a truncation
            return None
        return row
