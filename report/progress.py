"""The progress bar: follows a run's `history.jsonl` while the run writes it, on any engine."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from report.format import human_bytes, percent


class RunProgress:
    """A context manager that shows a bar for the run whose files appear in `folder`.

    On a screen that is not a terminal it prints nothing; the summary at the end remains.
    """

    def __init__(self, folder: Path, rounds: int, console: Console) -> None:
        self._history = folder / "history.jsonl"
        self._done = threading.Event()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TextColumn("up {task.fields[up]}  down {task.fields[down]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("round", total=rounds, accuracy="-", up="-", down="-")
        self._offset = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> RunProgress:
        if not self._progress.disable:
            self._progress.start()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._done.set()
        if not self._progress.disable:
            self._thread.join()
            self._progress.stop()

    def _follow(self) -> None:
        while not self._done.wait(0.25):
            self._read()
        self._read()

    def _read(self) -> None:
        """Show the last complete line that was written since the last look."""
        if not self._history.exists():
            return
        if self._history.stat().st_size < self._offset:  # cut off, where the run goes on
            self._offset = 0
        with self._history.open() as file:
            file.seek(self._offset)
            text = file.read()
        lines = text[: text.rfind("\n") + 1].splitlines()
        if not lines:
            return
        self._offset += len(text[: text.rfind("\n") + 1].encode())
        try:
            row = json.loads(lines[-1])
        except ValueError:  # the look fell into the middle of a line, of a history cut off
            return
        if row["accuracy"] is not None:
            self._progress.update(self._task, accuracy=percent(row["accuracy"]))
        self._progress.update(
            self._task,
            completed=row["round"],
            total=row["rounds"],
            up=human_bytes(row["uplink_bytes"]),
            down=human_bytes(row["downlink_bytes"]),
        )
