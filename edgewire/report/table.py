"""Tables of runs, and their printers: rich, Markdown, CSV; `report.html.j2` prints them as HTML.

`python -m edgewire.report.table FOLDER... [--reach VALUE] [--wide]` prints a sweep as a
table: one row for runs that differ in the seed only.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from rich.table import Table as RichTable

from edgewire.report.format import NOTHING, human_bytes, human_seconds, markdown_table
from edgewire.report.reader import mistakes_are_lines
from edgewire.report.runs import (
    Group,
    Measure,
    Row,
    find_runs,
    first_at,
    group_runs,
    read_runs,
    varying,
    whole_bytes,
)
from edgewire.task.metric import Metric

Each = TypeVar("Each")
WIDTH = 100  # characters of a terminal's line
LONGEST_CELL = 32_000  # characters of a cell in a CSV file
# the columns of the table after a sweep, and without `--wide`; beside them the main metrics
SHOWN = (
    *("runs", "reached at", "payloads until then", "ratio up", "ratio down"),
    *("sent up", "sent down", "epsilon", "virtual time", "time"),
)


class Cell(NamedTuple):
    """A cell: its text, and the number or text by which its column is sorted, None for last.

    `kind`: a class of the page's style sheet; `rank`: the place of a group whose mark the page
    shows in the cell.
    """

    text: str
    sort: float | str | None = None
    kind: str = ""
    rank: int | None = None


class Column(NamedTuple):
    """A column: its head, and the function that makes its cell of a row's runs or records.

    `numeric`: its cells are numbers, at the right. `help`: the page's explanation of the head.
    """

    head: str
    show: Callable[[Any], Cell]
    numeric: bool = True
    help: str = ""


@dataclass(frozen=True)
class TableRow(Group):
    """The runs of a row. `reach`: a bound of the main metric, in % for a share; or None."""

    reach: float | None = None

    @cached_property
    def reached(self) -> list[Row | None]:
        """For each run the evaluation at which it reaches the bound; None if it does not."""
        return self.when(first_at)

    def when(self, find: Callable[[Sequence[Row], float, Metric], Row | None]) -> list[Row | None]:
        """Return for each run the evaluation that a function finds for the bound `reach`."""
        if self.reach is None:
            return []
        shares = {True: self.reach / 100, False: self.reach}
        return [find(r.evaluations(), shares[r.metric.share], r.metric) for r in self.runs]

    def until_all(self, key: str) -> float | None:
        """Return the mean of a counter when the runs reach `reach`; None if one never does."""
        there = [at[key] for at in self.reached if at and at.get(key) is not None]
        return fmean(there) if there and len(there) == len(self.runs) else None


def quantity(value: float | None, form: Callable[[float], str], kind: str = "") -> Cell:
    """Return the cell of a number; "-" for None."""
    return Cell(NOTHING) if value is None else Cell(form(value), float(value), kind)


def words(text: str, kind: str = "", rank: int | None = None) -> Cell:
    """Return the cell of a text, which may be a number."""
    try:
        return Cell(text, float(text), kind, rank)
    except ValueError:
        return Cell(text, text.lower(), kind, rank)


def number(
    value: Callable[[Each], float | None], form: Callable[[float], str], kind: str = ""
) -> Callable[[Each], Cell]:
    """Return the function that shows a number of a row."""
    return lambda row: quantity(value(row), form, kind)


def mean(measure: Measure, form: Callable[[float], str]) -> Callable[[Group], Cell]:
    """Return the function that shows the mean of a number over a row's runs."""
    return number(lambda row: row.mean(measure), form)


def ratio(above: Measure, below: Measure, form: Callable[[float], str]) -> Callable[[Group], Cell]:
    """Return the function that shows `Group.ratio` of two numbers."""
    return number(lambda row: row.ratio(above, below), form)


def sent(way: str) -> Measure:
    """Return the measure of all bytes that a run sent. `way`: "uplink" or "downlink"."""
    return lambda result: whole_bytes(result, way)[0]


def plain(way: str) -> Measure:
    """Return the measure of all bytes that Flower would have sent. `way`: as in `sent`."""
    return lambda result: whole_bytes(result, way)[1]


def payload(result: dict[str, Any]) -> float:
    """Return the mean bytes of a run's payloads, one for each client update."""
    return float(result["uplink_bytes"] / max(result["client_updates"], 1))


def _with_deviation(key: str, share: bool = True) -> Callable[[Group], Cell]:
    """Show the mean of a number with its sample standard deviation; a share in %."""

    def show(row: Group) -> Cell:
        if (found := row.estimate(key)) is None:
            return Cell(NOTHING)
        text = f"{100 * found.mean:.2f}" if share else f"{found.mean:.4g}"
        if found.std is not None:
            text += f" ± {100 * found.std:.2f}" if share else f" ± {found.std:.2g}"
        return Cell(text + " %" * share, found.mean)

    return show


def main_columns(metric: Metric) -> dict[str, Column]:
    """Return the columns of a main metric and of its best value."""
    names = {metric.name: metric.name, f"best {metric.name}": f"best_{metric.name}"}
    return {head: Column(head, _with_deviation(k, metric.share)) for head, k in names.items()}


def _until(key: str, form: Callable[[float], str]) -> Callable[[TableRow], Cell]:
    return number(lambda row: row.until_all(key), form)


# the page's explanations of heads
SENT, FAILED = "all bytes of a run, mean of the runs", "failed or refused replies, mean of the runs"
RATIO = "bytes of Flower without compression, divided by the bytes sent"
EPSILON = "of differential privacy, mean of the runs"
# The bytes are those of whole messages, but for "payload an update" and "payloads until then".
# The ratios are compression ratios.
COLUMNS: dict[str, Column] = {
    column.head: column
    for column in (
        Column("runs", lambda row: quantity(len(row.runs), str), help="with different seeds"),
        Column("accuracy", _with_deviation("accuracy")),
        Column("best accuracy", _with_deviation("best_accuracy")),
        Column("top5", _with_deviation("top5")),
        Column("loss", mean("loss", "{:.4g}".format)),
        Column("reached at", _until("round", "{:.10g}".format)),
        Column("payloads until then", _until("uplink_bytes", human_bytes)),
        Column("payload an update", mean(payload, human_bytes)),
        Column("ratio up", ratio(plain("uplink"), sent("uplink"), "{:.2f}".format), help=RATIO),
        Column(
            "ratio down", ratio(plain("downlink"), sent("downlink"), "{:.2f}".format), help=RATIO
        ),
        Column("sent up", mean(sent("uplink"), human_bytes), help=SENT),
        Column("sent down", mean(sent("downlink"), human_bytes), help=SENT),
        Column("epsilon", mean("epsilon", "{:.3g}".format), help=EPSILON),
        Column("updates", mean("client_updates", "{:.10g}".format)),
        Column("failed", mean("failures", "{:,.10g}".format), help=FAILED),
        Column("virtual time", mean("virtual_seconds", human_seconds)),
        Column("a round", ratio("virtual_seconds", "rounds", human_seconds)),
        Column("time", mean("seconds", human_seconds)),
    )
}


@dataclass(frozen=True)
class Table:
    """A table: its columns, and rows with a cell for each column.

    `id`: its name in the page and of its CSV file. `title`: its title in the page.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    id: str = ""
    title: str = ""

    @classmethod
    def of(
        cls, columns: Sequence[Column], rows: Iterable[Any], id_: str = "", title: str = ""
    ) -> Table:
        """Return the table with a row of cells for each of `rows`, as the columns show them."""
        return cls(columns, [[column.show(row) for column in columns] for row in rows], id_, title)

    def used(self) -> Table:
        """Return the table without columns in which no row has a value; the first one stays."""
        kept = [
            at for at in range(len(self.columns))
            if at == 0 or any(row[at].text not in (NOTHING, "") for row in self.rows)
        ]  # fmt: skip
        rows = [[row[at] for at in kept] for row in self.rows]
        return replace(self, columns=[self.columns[at] for at in kept], rows=rows)

    def markdown(self) -> str:
        """Return the table in Markdown; numeric columns must be the last ones."""
        return markdown_table(
            [column.head for column in self.columns],
            [[cell.text for cell in row] for row in self.rows],
            numbers=sum(column.numeric for column in self.columns),
        )

    def rich(self) -> RichTable:
        """Return the table for a terminal: long texts take several lines, and so do heads."""
        table = RichTable(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in self.columns:
            if column.numeric:
                table.add_column(column.head.replace(" ", "\n"), justify="right", no_wrap=True)
            else:
                table.add_column(column.head.rpartition(".")[2], overflow="fold")
        for row in self.rows:
            table.add_row(*(cell.text for cell in row))
        return table

    def write_csv(self, path: Path) -> None:
        """Write the table: of numeric columns the numbers, of the others the texts."""
        pairs = (zip(self.columns, row, strict=True) for row in self.rows)
        rows = ([c.sort if column.numeric else c.text for column, c in row] for row in pairs)
        write_csv(path, [column.head for column in self.columns], rows)


def write_csv(path: Path, heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file of `safe_cell`s. Raises `OSError` if the file cannot be written."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(map(safe_cell, row) for row in chain([heads], rows))


def safe_cell(value: Any) -> Any:
    """Return a cell of a CSV file; text that a spreadsheet would compute gets an apostrophe."""
    if isinstance(value, str):
        value = value[:LONGEST_CELL]
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return value if value == NOTHING else f"'{value}"
    return value


def runs_table(groups: Sequence[Group], reach: float | None = None, wide: bool = False) -> Table:
    """Return the table of runs: the overrides that differ, and columns in which a run has a value.

    `groups`: runs that differ in the seed. `reach`: as in `TableRow`. `wide`: all of `COLUMNS`, and
    best values; else those in `SHOWN`, and the main metrics.
    """
    rows = [TableRow(group.overrides, group.runs, reach) for group in groups]
    metrics = dict.fromkeys(run.metric for row in rows for run in row.runs)
    known = {"runs": COLUMNS["runs"]}
    for metric in metrics:
        known |= main_columns(metric)
    names = {*SHOWN, *(metric.name for metric in metrics)}
    shown = [column for head, column in (known | COLUMNS).items() if wide or head in names]

    def own(key: str) -> Column:
        return Column(key, lambda group: words(group.overrides.get(key, NOTHING)), numeric=False)

    return Table.of([*map(own, varying(groups)), *shown], rows).used()


def sweep_table(folders: Sequence[Path]) -> RichTable | None:
    """Return the table of the finished runs in some folders; None if fewer than two have finished.

    A row has the runs that differ in the seed only.
    """
    runs, _ = find_runs(folders)
    return runs_table(group_runs(runs)).rich() if len(runs) > 1 else None


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table that the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgewire.report.table", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="sweep folders")
    parser.add_argument(
        "--reach", type=float, metavar="VALUE",
        help="when, with what uplink, it was got (a share in %%)",
    )  # fmt: skip
    parser.add_argument("--wide", action="store_true", help="all columns")
    asked = parser.parse_args(arguments)
    runs, unfinished = read_runs(asked.folders)
    groups = group_runs(runs)
    print(runs_table(groups, asked.reach, asked.wide).markdown())
    counted = [run for group in groups for run in group.runs]
    if repeated := len(runs) - len(counted):
        print(f"\n{repeated} repeated with the same seed: the last counts")
    lost = [run.folder for run in counted if run.diverged]  # also in the means
    for name, folders in (("diverged", lost), ("unfinished or damaged", unfinished)):
        if folders:
            print(f"\n{name}: {', '.join(map(str, folders))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
