"""Tables with the values that a benchmark measured: their definitions, and their Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report.errors import ResultsError
from report.format import markdown_row
from report.measured import Measured, measured_file
from report.pages.fields import expect_different, expect_keys, identifier, joined, list_of, text_of

COLUMN, ROW = "column", "row"  # placeholders in a path for the keys of a column and of a row
KEYS = {
    **dict.fromkeys(("benchmark", "path", "columns", "rows"), True),
    **dict.fromkeys(("id", "title", "note"), False),
}
ROW_KEYS = {"id": True, "label": True, "key": True}


@dataclass(frozen=True)
class BenchmarkTable:
    """The definition of a table: its columns (head -> key) and its rows (id -> label and key).

    `path`: the path of a value in the JSON, with `column` and `row` in place of their keys.
    """

    id: str
    title: str
    benchmark: str
    path: tuple[str, ...]
    columns: Mapping[str, str]
    rows: Mapping[str, tuple[str, str]]  # id -> (label, key)
    note: str = ""


@dataclass(frozen=True)
class FilledBenchmarkTable:
    """A table's definition and the values that the benchmark measured."""

    definition: BenchmarkTable
    measured: Measured

    def has_run(self) -> bool:
        """Return whether the benchmark has run."""
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
        """Return the sentences that name the table's command and the commit of its code."""
        return command_and_commits(self.measured.command, {self.measured.commit})

    def sentence(self, row: str, column: str) -> str:
        """Return a cell's text for a sentence. Raises `ResultsError` for an unknown name."""
        if row not in self.definition.rows:
            raise ResultsError(f"no row {row}")
        if column not in self.definition.columns:
            raise ResultsError(f"no column {column}")
        return self._cell(self.definition.rows[row][1], self.definition.columns[column])

    def _cell(self, row: str, column: str) -> str:
        keys = {COLUMN: column, ROW: row}
        return self.measured.value([keys.get(key, key) for key in self.definition.path])


def command_and_commits(command: str, commits: Collection[str]) -> str:
    """Return the sentences below a table that name its command and the commits of its code."""
    known = [f"`{commit}`" for commit in sorted(commits) if commit]
    name = "Commits" if len(known) > 1 else "Commit"
    return f"Command: `{command}`." + (f" {name}: {', '.join(known)}." if known else "")


def benchmark_table(root: Path, content: dict[str, Any]) -> BenchmarkTable:
    """Return the table that a page's YAML defines. Raises `ResultsError` for an invalid table."""
    expect_keys("a table of a benchmark", content, KEYS)
    if not isinstance(content["columns"], dict):
        raise ResultsError("columns of a benchmark must be HEAD: KEY")
    rows = list_of(content, "rows")
    for row in rows:
        expect_keys("a row of a benchmark", row, ROW_KEYS)
    expect_different("rows with the id", [identifier(row) for row in rows])
    benchmark = text_of(content, "benchmark")
    measured_file(root, benchmark)  # raises for an invalid name
    return BenchmarkTable(
        identifier(content) if "id" in content else "",
        text_of(content, "title"),
        benchmark,
        tuple(map(joined, list_of(content, "path"))),
        {joined(head): joined(key) for head, key in content["columns"].items()},
        {identifier(row): (text_of(row, "label"), text_of(row, "key")) for row in rows},
        text_of(content, "note"),
    )
