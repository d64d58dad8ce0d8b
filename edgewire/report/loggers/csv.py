"""Writes a run's history as a table, `history.csv`, for spreadsheets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewire.report.loggers import Ended, LoggedRun, Logger
from edgewire.report.reader import lines_of, open_file, row_in
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
        columns = dict.fromkeys(key for row in self._rows() for key in row)
        partial = self._file.with_name(f"{self._file.name}.part")
        write_csv(partial, columns, ([row.get(key) for key in columns] for row in self._rows()))
        os.replace(partial, self._file)

    def _rows(self) -> Iterator[Row]:
        """Yield the rows of the history one by one; it may have 200 MB."""
        with open_file(self._history) as opened:
            yield from filter(None, map(row_in, lines_of(opened)))
