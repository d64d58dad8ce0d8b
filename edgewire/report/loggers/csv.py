"""Writes a run's history as a table, `history.csv`, for spreadsheets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewire.report.loggers import Ended, LoggedRun, Logger
from edgewire.report.reader import rows_in
from edgewire.report.runs import HISTORY, Row
from edgewire.report.table import write_csv


class Csv(Logger):
    """Writes one line per row of `history.jsonl` at the run's end; its keys are the columns' heads.

    `file`: the table; null: `history.csv` in the run's folder. Null is an empty cell.
    """

    def __init__(self, file: str | None = None) -> None:
        self._given = file

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Make the table's folder."""
        self._history = run.folder / HISTORY
        self._file = Path(self._given or run.folder / "history.csv").expanduser()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        return {}

    def log(self, rows: Sequence[Row]) -> None:
        """Wait for the end: a later row may have another column."""

    def finish(self, ended: Ended, result: Row) -> None:
        """Write the table, and replace an earlier one."""
        columns = dict.fromkeys(key for row in rows_in(self._history) for key in row)
        partial = self._file.with_name(f"{self._file.name}.part")
        rows = filter(None, rows_in(self._history))  # one by one: a history may have 200 MB
        write_csv(partial, columns, ([row.get(key) for key in columns] for row in rows))
        os.replace(partial, self._file)
