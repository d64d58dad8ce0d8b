"""The columns of tables of runs: a column makes a cell from the runs of a row.

`COLUMNS` has those of `python -m edgewire.report.table` and of the table after a sweep. A cell has
a text, and a number or text to sort by; `edgewire.report.table` prints tables of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from edgewire.report.estimate import Estimate
from edgewire.report.format import NOTHING, human_bytes, human_seconds, percent
from edgewire.report.metric import MainMetric
from edgewire.report.runs import Group, Measure, Row, first_at, whole_bytes

Each = TypeVar("Each")


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

    def when(
        self, find: Callable[[Sequence[Row], float, MainMetric], Row | None]
    ) -> list[Row | None]:
        """Return for each run the evaluation that a function finds for the bound `reach`."""
        if self.reach is None:
            return []
        shares = {True: self.reach / 100, False: self.reach}
        return [find(r.evaluations(), shares[r.metric.share], r.metric) for r in self.runs]

    def until_all(self, key: str) -> float | None:
        """Return the mean of a counter when the runs reach `reach`; None if one never does."""
        there = [at[key] for at in self.reached if at is not None]
        return fmean(there) if there and len(there) == len(self.runs) else None


def quantity(value: float | None, form: Callable[[float], str], kind: str = "") -> Cell:
    """Return the cell of a number; "-" for None."""
    return Cell(NOTHING) if value is None else Cell(form(value), float(value), kind)


def words(text: str, kind: str = "", rank: int | None = None) -> Cell:
    """Return the cell of a text."""
    return Cell(text, text.lower(), kind, rank)


def value_or_words(text: str) -> Cell:
    """Return the cell of a setting, which may be a number or a text."""
    try:
        return Cell(text, float(text))
    except ValueError:
        return words(text)


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
        found = row.estimate(key)
        text = _of_share(found) if share else _of_value(found)
        return Cell(text, None if found is None else found.mean)

    return show


def _of_share(found: Estimate | None) -> str:
    if found is None or found.std is None:
        return percent(None if found is None else found.mean)
    return f"{100 * found.mean:.2f} ± {100 * found.std:.2f} %"


def _of_value(found: Estimate | None) -> str:
    if found is None:
        return NOTHING
    return f"{found.mean:.4g}" if found.std is None else f"{found.mean:.4g} ± {found.std:.2g}"


def main_columns(metric: MainMetric) -> dict[str, Column]:
    """Return the columns of a main metric and of its best value."""
    names = {metric.name: metric.name, f"best {metric.name}": f"best_{metric.name}"}
    return {head: Column(head, _with_deviation(k, metric.share)) for head, k in names.items()}


def _until(key: str, form: Callable[[float], str]) -> Callable[[TableRow], Cell]:
    return number(lambda row: row.until_all(key), form)


# The bytes are those of whole messages, but for "payload an update" and "payloads until then".
COLUMNS: dict[str, Column] = {
    column.head: column
    for column in (
        Column("runs", lambda row: quantity(len(row.runs), str)),
        Column("accuracy", _with_deviation("accuracy")),
        Column("best accuracy", _with_deviation("best_accuracy")),
        Column("top5", _with_deviation("top5")),
        Column("loss", mean("loss", "{:.4g}".format)),
        Column("reached at", _until("round", "{:.10g}".format)),
        Column("payloads until then", _until("uplink_bytes", human_bytes)),
        Column("payload an update", mean(payload, human_bytes)),
        Column("sent up", mean(sent("uplink"), human_bytes)),
        Column("compression ratio up", ratio(plain("uplink"), sent("uplink"), "{:.2f}".format)),
        Column("sent down", mean(sent("downlink"), human_bytes)),
        Column(
            "compression ratio down", ratio(plain("downlink"), sent("downlink"), "{:.2f}".format)
        ),
        Column("updates", mean("client_updates", "{:.10g}".format)),
        Column("failed", mean("failures", "{:.10g}".format)),
        Column("time", mean("seconds", human_seconds)),
        Column("virtual time", mean("virtual_seconds", human_seconds)),
        Column("a round", ratio("virtual_seconds", "rounds", human_seconds)),
    )
}
