"""Reads the new lines of a growing `history.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path

from report.runs import Row


class HistoryTail:
    """Reads a file of JSON lines while a run appends to it, on any engine.

    A resumed run removes the rows after its checkpoint. The next call then starts again at the
    beginning of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def lines(self) -> list[bytes]:
        """Return the complete lines written since the previous call; none if there is no file."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._offset:  # a resumed run has truncated the file
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()

    def rows(self) -> list[Row]:
        """Return these lines, parsed; a line that cannot be read ends the list.

        Such a line is a part of a row: the file was truncated and has grown again since the
        previous call. The next call then starts again at the beginning of the file.
        """
        found: list[Row] = []
        for line in self.lines():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not isinstance(row.get("round"), int):
                self._offset = 0
                break
            found.append(row)
        return found
