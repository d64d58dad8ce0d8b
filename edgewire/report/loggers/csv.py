"""Writes a run's history as a table, `history.csv`, for spreadsheets."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewire.report.loggers import LoggedRun, Logger
from edgewire.report.runs import Row


class Csv(Logger):
    """Writes one line per row of `history.jsonl`, with the same keys as the columns' heads.

    `file`: the table; null: `history.csv` in the run's folder. Null is an empty cell, and a list is
    written as JSON.
    """

    def __init__(self, file: str | None = None) -> None:
        self._given = file
        self._columns: list[str] = []

    def begin(self, run: LoggedRun) -> Mapping[str, Any]:
        """Begin a new table; keep the lines of the rows that are logged already if resumed."""
        self._file = Path(self._given or run.folder / "history.csv").expanduser()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = _read(self._file, run.saved.get("round", -1)) if run.resumed else []
        self._columns = list(kept[0]) if kept else []
        self._write_all(kept)
        return {}

    def log(self, rows: Sequence[Row]) -> None:
        """Append lines. A new key becomes a column, empty in the lines before."""
        cells = [{key: _cell(value) for key, value in row.items()} for row in rows]
        new = dict.fromkeys(key for row in cells for key in row if key not in self._columns)
        if new:
            before = _read(self._file, rows[0]["round"] - 1)
            self._columns += new
            self._write_all(before)
        with self._file.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, restval="").writerows(cells)

    def _write_all(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Replace the table atomically."""
        partial = self._file.with_name(f"{self._file.name}.part")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            if self._columns:
                writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self._file)


def _read(file: Path, last: int) -> list[dict[str, str]]:
    """Return the whole lines of a table whose round is at most `last`."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = csv.DictReader(lines)
    return [row for row in rows if row.get("round", "").isdecimal() and int(row["round"]) <= last]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
