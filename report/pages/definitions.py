"""Reads the definitions of pages (report/pages/NAME.yaml): claim, setting, tables and notes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from report.columns import COLUMNS
from report.errors import ResultsError
from report.pages.benchmark_table import BenchmarkTable, benchmark_table
from report.pages.fields import (
    expect_different,
    expect_keys,
    identifier,
    joined,
    list_of,
    number,
    text_of,
    whole_number,
)
from report.run_archive import archive_file
from report.runs import in_order, split_overrides

FOLDER = Path("report/pages")
PAPER = "paper"  # the only column that is not measured
ACCURACY = "accuracy"  # the default column of a table with `across`
POINTS = "points"  # accuracy against bytes; the other pictures show learning curves
PICTURES = {
    POINTS: "accuracy against bytes",
    "accuracy": "accuracy over rounds and bytes",
    "train_loss": "training loss over rounds and bytes",
}
ROW = {
    "id": True,
    "label": True,
    "overrides": True,
    "paper": False,
}  # key -> whether it is required
TABLE = {
    **dict.fromkeys(("experiment", "rows"), True),
    **dict.fromkeys(
        ("id", "title", "overrides", "beside", "columns", "against", "across", "picture", "note"),
        False,
    ),
    **dict.fromkeys(("smooth", "reach", "after", "least"), False),
}
ACROSS = {"key": True, "values": True}
ACROSS_OVERRIDES = {"overrides": True}
PAGE = {"title": True, "claim": True, "setting": True, "tables": True, "notes": False}


@dataclass(frozen=True)
class RowDefinition:
    """A table's row: its id, its label, the overrides of its runs, and the number in the paper.

    `across`: in a table whose columns show runs with different overrides, the overrides of the runs
    for each column; otherwise empty.
    """

    id: str
    label: str
    overrides: str
    paper: str
    across: tuple[str, ...] = ()

    @property
    def all_overrides(self) -> set[str]:
        """The overrides of all runs in this row."""
        return set(self.across) or {self.overrides}


@dataclass(frozen=True)
class TableDefinition:
    """A table: the experiment with its runs, the rows and columns, and how they are shown.

    `against`: the id of the row with which other rows are compared; "" for none. `across`: the
    heads of columns that show the same measure for runs with different overrides; `columns` then
    has only this measure.
    With `search` the highest cell of a row is bold. `picture`: one of `PICTURES`, or "". `least`:
    the start of the picture's y axis. `smooth`: accuracies are means of this number of evaluations.
    `beside`: overrides that all runs have, in addition to the experiment's name. `reach`: an
    accuracy in %; some columns (such as bytes up) include only the rounds until a run reached this
    accuracy. `after`: a round; some columns include only the rounds after it.
    """

    id: str
    title: str
    experiment: str
    against: str
    columns: tuple[str, ...]
    across: tuple[str, ...]
    rows: tuple[RowDefinition, ...]
    picture: str
    note: str
    search: bool = False
    smooth: int = 1
    reach: float | None = None
    after: int | None = None
    least: float | None = None
    beside: str = ""

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


@dataclass(frozen=True)
class PageDefinition:
    """A page: its name, one claim in a sentence, the setting of its runs, tables and notes."""

    name: str
    title: str
    claim: str
    setting: str
    tables: tuple[TableDefinition | BenchmarkTable, ...]
    notes: tuple[str, ...]


def read_definitions(root: Path) -> list[PageDefinition]:
    """Return all definitions, sorted by name. Raises `ResultsError` for an invalid one."""
    return [read_definition(root, path) for path in sorted((root / FOLDER).glob("*.yaml"))]


def read_definition(root: Path, path: Path) -> PageDefinition:
    """Return the page that a file defines. Raises `ResultsError`, with the file's name."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        return _page(root, path.stem, content)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise ResultsError(f"{path} is no YAML: {first}") from error
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error


def _page(root: Path, name: str, content: Any) -> PageDefinition:
    expect_keys("a page", content, PAGE)
    tables = tuple(_table(root, table) for table in list_of(content, "tables"))
    if not tables:
        raise ResultsError("tables must be one or more")
    if len(tables) > 1 and not all(table.id and table.title for table in tables):
        raise ResultsError("of several tables each needs an id and a title")
    expect_different("tables with the id", [table.id for table in tables])
    title, claim, setting = (text_of(content, key) for key in ("title", "claim", "setting"))
    notes = tuple(joined(note) for note in list_of(content, "notes"))
    return PageDefinition(name, title, claim, setting, tables, notes)


def _table(root: Path, content: Any) -> TableDefinition | BenchmarkTable:
    if isinstance(content, dict) and "benchmark" in content:
        return benchmark_table(root, content)
    expect_keys("a table", content, TABLE)
    beside = _overrides(text_of(content, "beside"))
    common = {**_overrides(text_of(content, "overrides")), **beside}
    across = _across(content.get("across"))
    rows = tuple(_row(row, common, across.values()) for row in list_of(content, "rows"))
    expect_different("rows with the id", [row.id for row in rows])
    expect_different("rows with the overrides", [row.overrides for row in rows])
    columns = tuple(text_of({"": column}, "") for column in list_of(content, "columns"))
    if across and not columns:
        columns = (ACCURACY,)
    if not columns or (across and len(columns) > 1):
        raise ResultsError("a table has columns, one of them where it has across")
    experiment, against = text_of(content, "experiment"), text_of(content, "against")
    archive_file(root, experiment)  # raises for an unknown experiment
    table = TableDefinition(
        identifier(content) if "id" in content else "",
        text_of(content, "title"),
        experiment,
        against,
        columns,
        tuple(across),
        rows,
        _picture(content),
        text_of(content, "note"),
        "key" in content.get("across", {}) and columns == (ACCURACY,),
        whole_number(content, "smooth") or 1,
        number(content, "reach"),
        whole_number(content, "after"),
        number(content, "least"),
        in_order(beside),
    )
    if against and table.row(against) is None:
        raise ResultsError(f"against: no row has the id {against}")
    _expect_columns(columns, table.given())
    return table


def _across(content: Any) -> dict[str, dict[str, str]]:
    """Return, for each column's head, the overrides that the column adds to a row's overrides.

    In YAML, either `key` and `values`: each column sets the key to one of the values; or
    `overrides`: head -> overrides. The result is {} for a table whose columns add no overrides.
    """
    if content is None:
        return {}
    if isinstance(content, dict) and "overrides" in content:
        expect_keys("across", content, ACROSS_OVERRIDES)
        heads = content["overrides"]
        if not isinstance(heads, dict) or not heads:
            raise ResultsError("overrides of across must be HEAD: OVERRIDES")
        return {joined(head): _overrides(joined(overrides)) for head, overrides in heads.items()}
    expect_keys("across", content, ACROSS)
    key, values = text_of(content, "key"), map(joined, list_of(content, "values"))
    return {f"{key} {value}": {key: value} for value in values}


def _picture(content: Mapping[str, Any]) -> str:
    picture = text_of(content, "picture")
    if picture and picture not in PICTURES:
        raise ResultsError(f"picture must be one of {', '.join(PICTURES)}, not {picture}")
    return picture


def _row(
    content: Any, common: Mapping[str, str], across: Iterable[Mapping[str, str]]
) -> RowDefinition:
    expect_keys("a row", content, ROW)
    overrides = {**common, **_overrides(text_of(content, "overrides"))}
    paper = text_of(content, "paper")
    each = tuple(in_order({**overrides, **more}) for more in across)
    return RowDefinition(
        identifier(content), text_of(content, "label"), in_order(overrides), paper, each
    )


def _overrides(text: str) -> dict[str, str]:
    """Return the overrides in a text (such as "a=1 b=2") as a dict: key -> value."""
    try:
        overrides = shlex.split(text)
    except ValueError as error:
        raise ResultsError(f"overrides {text!r}: {error}") from error
    if wrong := [word for word in overrides if "=" not in word]:
        raise ResultsError(f"overrides {text!r}: {wrong[0]} is not KEY=VALUE")
    return split_overrides(overrides)


def _expect_columns(columns: Iterable[str], given: Mapping[str, str]) -> None:
    for column in columns:
        if column not in COLUMNS and column != PAPER:
            known = ", ".join((PAPER, *COLUMNS))
            raise ResultsError(f"no column {column}; there are: {known}")
        needs = "" if column == PAPER else COLUMNS[column].needs
        if needs and not given[needs]:
            raise ResultsError(f"the column {column} needs {needs}:")
