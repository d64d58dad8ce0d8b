"""A table of a benchmark's values: its definition, and how it is filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report.errors import ResultsError
from report.format import markdown_row
from report.measured import Measured, measured_file
from report.pages.fields import expect_different, expect_keys, identifier, joined, list_of, text_of

COLUMN, ROW = "column", "row"  # in a path: the key of a table's column, of its row
KEYS = {
    **dict.fromkeys(("benchmark", "path", "columns", "rows"), True),
    **dict.fromkeys(("id", "title", "note"), False),
}
ROW_KEYS = {"id": True, "label": True, "key": True}


@dataclass(frozen=True)
class LookedUp:
    """A table of a benchmark's values: keys of the columns by their heads, labels and keys of rows.

    `path`: where a value lies in the JSON, with `column` and `row` for their keys.
    """

    id: str
    title: str
    benchmark: str
    path: tuple[str, ...]
    columns: Mapping[str, str]
    rows: Mapping[str, tuple[str, str]]  # by their ids
    note: str = ""


@dataclass(frozen=True)
class FilledLookedUp:
    """Such a table and what was measured."""

    definition: LookedUp
    measured: Measured

    def has_run(self) -> bool:
        """Whether the benchmark has."""
        return bool(self.measured.command)

    def lines(self) -> list[str]:
        """Return the table as lines of Markdown."""
        rows = [
            [label, *(self._cell(key, column) for column in self.definition.columns.values())]
            for label, key in self.definition.rows.values()
        ]
        heads = ["", *self.definition.columns]
        return [markdown_row(line) for line in (heads, ["---"] * len(heads), *rows)]

    def origin(self) -> str:
        """Say what printed it, and at which state of the code."""
        at = f", at `{self.measured.commit}`" if self.measured.commit else ""
        return f"`{self.measured.command}`{at}"

    def sentence(self, row: str, column: str) -> str:
        """Return a value as a text has it. Raises `ResultsError` for what is not in the table."""
        if row not in self.definition.rows:
            raise ResultsError(f"no row {row}")
        if column not in self.definition.columns:
            raise ResultsError(f"no column {column}")
        return self._cell(self.definition.rows[row][1], self.definition.columns[column])

    def _cell(self, row: str, column: str) -> str:
        keys = {COLUMN: column, ROW: row}
        return self.measured.value([keys.get(key, key) for key in self.definition.path])


def looked_up(root: Path, content: dict[str, Any]) -> LookedUp:
    """Return the table that a definition holds. Raises `ResultsError` for a wrong one."""
    expect_keys("a table of a benchmark", content, KEYS)
    if not isinstance(content["columns"], dict):
        raise ResultsError("columns of a benchmark must be HEAD: KEY")
    rows = list_of(content, "rows")
    for row in rows:
        expect_keys("a row of a benchmark", row, ROW_KEYS)
    expect_different("rows with the id", [identifier(row) for row in rows])
    benchmark = text_of(content, "benchmark")
    measured_file(root, benchmark)  # whether it may be called so
    return LookedUp(
        identifier(content) if "id" in content else "",
        text_of(content, "title"),
        benchmark,
        tuple(map(joined, list_of(content, "path"))),
        {joined(head): joined(key) for head, key in content["columns"].items()},
        {identifier(row): (text_of(row, "label"), text_of(row, "key")) for row in rows},
        text_of(content, "note"),
    )
