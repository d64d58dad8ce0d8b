"""Tables with the values that a benchmark measured: their definitions, and their Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from report.errors import ResultsError
from report.format import markdown_table
from report.measured import Measured, measured_file
from report.pages.fields import expect_different, expect_keys, identifier, joined, list_of, text_of

COLUMN, ROW = "column", "row"  # placeholders in a path for the keys of a column and of a row
KEYS = {
    **dict.fromkeys(("benchmark", "path", "columns", "rows"), True),
    **dict.fromkeys(("id", "title", "note"), False),
}
ROW_KEYS = {"id": True, "label": True, "key": True}


@dataclass(frozen=True)
class Origin:
    """Where the values of a table are from, for the text below the table.

    `command`: the command that measured the values; `commits`: those of its code. For tables of
    runs also: `cpus`, the instruction sets that torch used; `all_know_cpu`, whether all runs
    recorded theirs; `seeds`, how many seeds the cells have, sorted, each number once; `has_blank`,
    whether some cells have no run.
    """

    command: str
    commits: Sequence[str]
    cpus: Sequence[str] = ()
    all_know_cpu: bool = True
    seeds: Sequence[int] = ()
    has_blank: bool = False


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

    @cached_property
    def markdown(self) -> str:
        """The table in Markdown."""
        rows = [
            [label, *(self._cell(key, column) for column in self.definition.columns.values())]
            for label, key in self.definition.rows.values()
        ]
        return markdown_table(["", *self.definition.columns], rows)

    def origin(self) -> Origin:
        """Return where the values are from, for the text below the table."""
        commits = [self.measured.commit] if self.measured.commit else []
        return Origin(self.measured.command, commits)

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
