"""The definitions of pages (papers/pages/NAME.yaml): claim, setting, tables and notes.

The dataclasses have the keys of a definition; OmegaConf checks the keys and their types. A key
without a default is required.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from edgewire.report.reader import ResultsError
from edgewire.report.runs import in_order
from papers.make.columns import COLUMNS
from papers.make.measured import measured_file
from papers.make.run_archive import archive_file, parse_overrides

FOLDER = Path("papers/pages")
PAPER = "paper"  # the only column that is not measured
ACCURACY, MAIN = "accuracy", "metric"
POINTS = "points"  # the main metric against bytes; the other pictures show learning curves
PICTURES = {
    POINTS: "{metric} against bytes",
    MAIN: "{metric} over rounds and bytes",
    ACCURACY: "accuracy over rounds and bytes",
    "train_loss": "training loss over rounds and bytes",
}
ID = re.compile(r"[\w-]+")


@dataclass
class RowDefinition:
    """A table's row: its id, its label, the overrides of its runs, and the number in the paper."""

    id: str = MISSING
    label: str = MISSING
    overrides: str = MISSING
    paper: str = ""


@dataclass
class Across:
    """Columns that show the same measure for runs with different overrides.

    Either `key` and `values`: each column sets the key to one of the values; or `overrides`: for
    each column its head and the overrides that it adds to those of a row.
    """

    key: str = ""
    values: list[str] = field(default_factory=list)
    overrides: dict[str, str] = field(default_factory=dict)


@dataclass
class TableDefinition:
    """A table: the experiment with its runs, the rows and columns, and how they are shown.

    `overrides`: those of all rows. `beside`: overrides that all runs have, in addition to the
    experiment's name. `columns`: names in `COLUMNS`, or "paper"; with `across` only one.
    `against`: the id of the row with which other rows are compared; "" for none. `picture`: one of
    `PICTURES`, or "". `least`: the start of the picture's y axis. `smooth`: values of the main
    metric are means of this number of evaluations. `reach`: a value of the main metric, in % for a
    share; some columns (such as bytes up) include only the rounds until a run reached it. `after`:
    a round; some columns include only the rounds after it.
    """

    experiment: str = MISSING
    rows: list[RowDefinition] = MISSING
    id: str = ""
    title: str = ""
    overrides: str = ""
    beside: str = ""
    columns: list[str] = field(default_factory=list)
    against: str = ""
    across: Across = field(default_factory=Across)
    picture: str = ""
    note: str = ""
    smooth: int = 1
    reach: float | None = None
    after: int | None = None
    least: float | None = None

    def given(self) -> dict[str, str]:
        """Return the table's settings that columns may need, as text for heads; "" if not set."""
        other = self.row(self.against)
        return {
            "against": other.label if other else "",
            "reach": "" if self.reach is None else f"{self.reach:g}",
            "after": "" if self.after is None else f"{self.after:,}",
        }

    def row(self, name: str) -> RowDefinition | None:
        """Return the row with this id; or None."""
        return next((row for row in self.rows if row.id == name), None)

    @property
    def search(self) -> bool:
        """Whether the table shows a search for the best value of a key. Its best cells are bold."""
        return bool(self.across.key) and self.columns in ([ACCURACY], [MAIN])

    def heads_across(self) -> list[str]:
        """Return the heads of the columns that `across` defines; [] without `across`."""
        key, values = self.across.key, self.across.values
        return [*self.across.overrides] or [f"{key} {value}" for value in values]

    def settings(self, row: RowDefinition) -> list[str]:
        """Return the settings (`Run.settings`) of a row's runs.

        A table with `across` has one for each column, in their order; any other table has one.
        """
        every = {
            **parse_overrides(self.overrides),
            **parse_overrides(self.beside),
            **parse_overrides(row.overrides),
        }
        columns = [parse_overrides(text) for text in self.across.overrides.values()]
        columns = columns or [{self.across.key: value} for value in self.across.values]
        return [in_order({**every, **more}) for more in columns or [{}]]

    def all_settings(self) -> set[str]:
        """Return the settings of all runs in the table."""
        return {settings for row in self.rows for settings in self.settings(row)}


@dataclass
class FirstPicture:
    """README's picture of a benchmark's table: the gain of methods against bytes.

    `rows`: id of a row -> its name in the picture; `ours`: ids of rows that are emphasised; `left`
    and `below`: ids of rows whose names stand there, and not on the right. The others are the keys
    of a row's values: how many times fewer bytes it sends, its mean gain over the tasks in
    percentage points, half the width of the mean's interval, and its worst gain.
    """

    rows: dict[str, str] = MISSING
    fewer: str = MISSING
    mean: str = MISSING
    half: str = MISSING
    worst: str = MISSING
    ours: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


@dataclass
class BenchmarkRow:
    """A row of a benchmark's table: its id, its label, and its key in the benchmark's JSON."""

    id: str = MISSING
    label: str = MISSING
    key: str = MISSING


@dataclass
class BenchmarkTable:
    """A table with values that a benchmark measured.

    `path`: the path of a value in the JSON, with `column` and `row` in place of their keys.
    `columns`: head -> key. `first`: README's picture; only one table has it.
    """

    benchmark: str = MISSING
    path: list[str] = MISSING
    columns: dict[str, str] = MISSING
    rows: list[BenchmarkRow] = MISSING
    id: str = ""
    title: str = ""
    note: str = ""
    first: FirstPicture | None = None


@dataclass
class PageDefinition:
    """A page: one claim in a sentence, the setting of its runs, tables and notes."""

    title: str = MISSING
    claim: str = MISSING
    setting: str = MISSING
    tables: list[Any] = field(default_factory=list)  # `TableDefinition`s and `BenchmarkTable`s
    notes: list[str] = field(default_factory=list)
    name: str = field(default="", metadata={"omegaconf_ignore": True})  # that of the file


Definition = TypeVar("Definition", PageDefinition, TableDefinition, BenchmarkTable)
SCHEMAS: dict[Any, Any] = {
    kind: OmegaConf.structured(kind) for kind in (PageDefinition, TableDefinition, BenchmarkTable)
}


def read_definitions(root: Path) -> list[PageDefinition]:
    """Return all definitions, sorted by name. Raises `ResultsError` for an invalid one."""
    return [read_definition(root, path) for path in sorted((root / FOLDER).glob("*.yaml"))]


def read_definition(root: Path, path: Path) -> PageDefinition:
    """Return the page that a file defines. Raises `ResultsError`, with the file's name."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        tables = content.pop("tables", None) if isinstance(content, dict) else None
        page = _checked(PageDefinition, content)
        page.name = path.stem
        if not isinstance(tables, list) or not tables:
            raise ResultsError("tables must be one or more")
        page.tables = [_table(root, table) for table in tables]
        if len(page.tables) > 1 and not all(table.id and table.title for table in page.tables):
            raise ResultsError("of several tables each needs an id and a title")
        _expect_different("tables with the id", [table.id for table in page.tables])
        return page
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if error.full_key else ""
        raise ResultsError(f"{path}: {where}{str(error).splitlines()[0]}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is no YAML: {str(error).splitlines()[0]}") from error
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error


def _checked(kind: type[Definition], content: Any) -> Definition:
    """Return an object of a dataclass with the keys that a definition gives.

    Raises `ResultsError` or `OmegaConfBaseException` for unknown, missing or invalid keys.
    """
    if not isinstance(content, dict):
        raise ResultsError(f"{content!r} must have the keys {_keys(kind)}")
    try:
        merged = OmegaConf.merge(SCHEMAS[kind], content)
    except ConfigKeyError as error:
        known = _keys(error.object_type or kind)
        raise ResultsError(f"there is no key {error.full_key}; there are: {known}") from error
    if missing := sorted(OmegaConf.missing_keys(merged)):
        raise ResultsError(f"{missing[0]} is missing")
    found: Definition = OmegaConf.to_object(merged)  # type: ignore[assignment]
    return found


def _keys(kind: Any) -> str:
    return ", ".join(each.name for each in fields(kind) if not each.metadata)


def _table(root: Path, content: Any) -> TableDefinition | BenchmarkTable:
    if isinstance(content, dict) and "benchmark" in content:
        benchmark = _checked(BenchmarkTable, content)
        _expect_ids(benchmark)
        drawn = benchmark.first.rows if benchmark.first else {}
        if unknown := sorted(drawn.keys() - {row.id for row in benchmark.rows}):
            raise ResultsError(f"first: no row has the id {unknown[0]}")
        measured_file(root, benchmark.benchmark)  # raises for an invalid name
        return benchmark
    table = _checked(TableDefinition, content)
    _expect_ids(table)
    try:
        settings = [" and ".join(table.settings(row)) for row in table.rows]
    except ValueError as error:
        raise ResultsError(f"overrides: {error}") from error
    _expect_different("rows with the overrides", settings)
    archive_file(root, table.experiment)  # raises for an unknown experiment
    if table.picture and table.picture not in PICTURES:
        raise ResultsError(f"picture must be one of {', '.join(PICTURES)}, not {table.picture}")
    for key in ("smooth", "after"):  # a metric, and so `reach` and `least`, may be below 0
        if (value := getattr(table, key)) is not None and value <= 0:
            raise ResultsError(f"{key} must be a number above 0, not {value}")
    across = bool(table.heads_across())
    if across and not table.columns:
        table.columns = [MAIN]
    if not table.columns or (across and len(table.columns) > 1):
        raise ResultsError("a table has columns, one of them where it has across")
    if table.against and table.row(table.against) is None:
        raise ResultsError(f"against: no row has the id {table.against}")
    _expect_columns(table.columns, table.given())
    return table


def _expect_ids(table: TableDefinition | BenchmarkTable) -> None:
    """Raise `ResultsError` unless a table has rows, and its ids are valid and different."""
    ids = [row.id for row in table.rows]
    if not ids:
        raise ResultsError("rows must be one or more")
    if invalid := [text for text in [table.id or "0", *ids] if not ID.fullmatch(text)]:
        raise ResultsError(f"an id is letters, digits, - and _, not {invalid[0]!r}")
    _expect_different("rows with the id", ids)


def _expect_different(what: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ResultsError(f"several {what} {value!r}")


def _expect_columns(columns: Iterable[str], given: Mapping[str, str]) -> None:
    for column in columns:
        if column not in COLUMNS and column != PAPER:
            known = ", ".join((PAPER, *COLUMNS))
            raise ResultsError(f"no column {column}; there are: {known}")
        needs = "" if column == PAPER else COLUMNS[column].needs
        if needs and not given[needs]:
            raise ResultsError(f"the column {column} needs {needs}:")
