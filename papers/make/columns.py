"""The columns of the pages' tables: a column turns the runs of a row into text for a cell.

The definitions of pages (papers/pages/NAME.yaml) name the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from edgewire.report.estimate import Estimate, paired
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.reader import ResultsError
from edgewire.report.runs import BESIDE, Measure, Row, Run, by_seed, first_at
from edgewire.report.table import Cell, TableRow, mean, number, plain, ratio, sent
from edgewire.task.metric import ACCURACY, Metric

NOT_RUN = "not run yet"
ONE_SEED = " (one seed)"
PAPER_HEAD = "paper's {metric_unit}"
REMARKS = "remarks"  # the head of the column with `remark`
FAILED_REPLY, FAILED_REPLIES = "1 failed reply", "failed replies"


class Rendered(NamedTuple):
    """A value as two texts: for a table's cell, and with its unit for a sentence."""

    cell: str
    sentence: str


@dataclass(frozen=True)
class PageRow(TableRow):
    """A row's runs, in the order of their seeds, and the table's settings that columns need.

    `against`: the runs of the row to compare with. `after`: a round.
    """

    against: Sequence[Run] = ()
    after: int | None = None


Show = Callable[[PageRow], Rendered]
Find = Callable[[Sequence[Row], float, Metric], Row | None]


class Column(NamedTuple):
    """A column: its head, and the function that makes its text from a row.

    `needs`: the name of the table's setting that the column requires, or "".
    """

    head: str
    show: Show
    needs: str = ""


def stays_above(rows: Sequence[Row], bound: float, metric: Metric = ACCURACY) -> Row | None:
    """Return the first row from which on all rows reach a bound of the metric; or None.

    If a run reaches the bound and loses it again, this row is later than the row that
    `first_at` returns.
    """
    found = None
    for row in reversed(rows):
        if not metric.reaches(row[metric.name], bound):
            break
        found = row
    return found


def _same(text: str) -> Rendered:
    return Rendered(text, text)


def _text(show: Callable[[PageRow], Cell]) -> Show:
    """Show the text of a cell in tables and in sentences."""
    return lambda row: _same(show(row).text)


def _mean(measure: Measure, form: Callable[[float], str]) -> Show:
    return _text(mean(measure, form))


def _ratio(above: Measure, below: Measure, form: Callable[[float], str]) -> Show:
    return _text(ratio(above, below, form))


def _with_interval(key: str, scale: float = 1, places: int = 2, unit: str = "") -> Show:
    """Show the mean over the runs with its 95 % interval."""

    def show(row: PageRow) -> Rendered:
        if (found := row.estimate(key, scale)) is None:
            return _same(NOTHING)
        text, remark = found.text(places), _of_how_many(found, len(row.runs))
        return Rendered(text + remark, text + unit + remark)

    return show


def _main(best: bool = False) -> Show:
    """Show the mean of the main metric, or of its best value, with its 95 % interval."""

    def show(row: PageRow) -> Rendered:
        metric = row.metric
        key = f"best_{metric.name}" if best else metric.name
        value = (row.mean(key) or 0.0) * metric.scale
        return _with_interval(key, metric.scale, metric.places(value), metric.unit)(row)

    return show


def _of_how_many(found: Estimate, runs: int) -> str:
    """Return a remark on a single seed, or on values that some runs lack; else ""."""
    if found.count < runs:
        return f" ({found.count} of {runs} runs)"
    return ONE_SEED if found.count == 1 else ""


def _compared(row: PageRow, best: bool = False) -> Estimate | None:
    """Return the mean difference of the main metric from the row `against`; of a share in points.

    `best`: compare the best values. The mean is over the seeds that both rows have. None: the rows
    have no seed in common.
    """
    metric = row.metric
    key = f"best_{metric.name}" if best else metric.name
    return paired(*(by_seed(runs, key, metric.scale) for runs in (row.runs, row.against)))


def _points(row: PageRow, best: bool = False) -> Rendered:
    if row.runs == row.against:
        return Rendered("", NOTHING)
    if (found := _compared(row, best)) is None:
        return _same(NOTHING)
    text = found.text(row.metric.places(found.mean))
    remark = _of_how_many(found, len(row.runs))
    return Rendered(text + remark, f"{text}{' points' * row.metric.share}{remark}")


def _difference(row: PageRow, best: bool = False) -> Rendered:
    """Show the difference from the row `against`; say "noise" if it may be 0."""
    points, found = _points(row, best), _compared(row, best)
    if row.runs == row.against or found is None or not found.noise:
        return points
    return Rendered(f"{points.cell}, noise", f"{points.sentence}, within the noise")


def _verdict(row: PageRow) -> Rendered:
    """Return how a row compares with the row `against`: "above", or "better than" if less is."""
    found = _compared(row)
    if found is None or found.half is None:
        return _same("not yet told apart from")
    if found.noise:
        return _same("within the noise of")
    if row.metric.higher:
        return _same("above" if found.mean > 0 else "below")
    return _same("better than" if found.mean < 0 else "worse than")


def _until(keys: Sequence[str], form: Callable[[float], str], find: Find = first_at) -> Show:
    """Show the sum of the counters `keys` when a run reaches the table's bound (`reach`).

    The mean is over the runs that reach it. `find`: finds the evaluation.
    """

    def show(row: PageRow) -> Rendered:
        found = row.when(find)
        there = [sum(at[key] or 0 for key in keys) for at in found if at is not None]
        if not there:
            return _same("never")
        part = "" if len(there) == len(found) else f" ({len(there)} of {len(found)} runs)"
        return _same(form(fmean(there)) + part)

    return show


def _after(above: str, below: str, form: Callable[[float], str]) -> Show:
    """Show by how much the counter `above` grew, divided by the growth of the counter `below`.

    Both are counted only after the table's round `after`.
    """

    def value(row: PageRow) -> float | None:
        lived = [run for run in row.runs if not run.diverged]  # others may end before this round
        grown = [_grown(run, row.after or 0, (above, below)) for run in lived]
        top, bottom = (sum(values) for values in zip(*grown, strict=True)) if grown else (0, 0)
        return top / bottom if bottom else None

    return _text(number(value, form))


def _grown(run: Run, after: int, keys: Sequence[str]) -> list[float]:
    """Return how much a run's counters grew after the round `after`.

    Raises `ResultsError` if this round has no evaluation.
    """
    rows = run.evaluations()
    start = next((row for row in rows if row["round"] == after), None)
    if start is None or any(row.get(key) is None for row in (start, rows[-1]) for key in keys):
        raise ResultsError(f"{run.settings}: nothing is kept of what was counted at round {after}")
    return [rows[-1][key] - start[key] for key in keys]


def _known(measure: Measure, way: str) -> Measure:
    """Return `measure` with None for a stored run that lacks the bytes beside its payloads."""
    assert callable(measure)
    needed = [key for key in BESIDE if key.startswith(way)]
    return lambda result: measure(result) if all(key in result for key in needed) else None


def _all_bytes(way: str) -> Show:
    return _mean(_known(sent(way), way), human_bytes)


def _all_ratio(way: str) -> Show:
    return _ratio(_known(plain(way), way), _known(sent(way), way), "{:.1f}".format)


COLUMNS: dict[str, Column] = {
    "accuracy": Column("accuracy, %", _with_interval("accuracy", 100, unit=" %")),
    "metric": Column("{metric_unit}", _main()),
    "best metric": Column("best {metric_unit}", _main(best=True)),
    "difference": Column('difference from "{against}"{points}', _difference, "against"),
    "points": Column('difference from "{against}"{points}', _points, "against"),
    "best difference": Column(
        'best {metric}, difference from "{against}"{points}',
        lambda row: _difference(row, best=True),
        "against",
    ),
    "verdict": Column("compared with {against}", _verdict, "against"),
    "best accuracy": Column("best accuracy, %", _with_interval("best_accuracy", 100, unit=" %")),
    "top5": Column("top-5 accuracy, %", _with_interval("top5", 100, unit=" %")),
    "loss": Column("test loss", _with_interval("loss", places=3)),
    "updates": Column("applied updates", _mean("client_updates", "{:,.10g}".format)),
    "uplink": Column("bytes up", _mean("uplink_bytes", human_bytes)),
    "downlink": Column("bytes down", _mean("downlink_bytes", human_bytes)),
    "compression ratio up": Column(
        "compression ratio up", _ratio("uplink_bytes_float32", "uplink_bytes", "{:.2f}".format)
    ),
    "compression ratio down": Column(
        "compression ratio down",
        _ratio("downlink_bytes_float32", "downlink_bytes", "{:.2f}".format),
    ),
    "all uplink": Column("all bytes up", _all_bytes("uplink")),
    "all downlink": Column("all bytes down", _all_bytes("downlink")),
    "all ratio up": Column("compression ratio up, all bytes", _all_ratio("uplink")),
    "all ratio down": Column("compression ratio down, all bytes", _all_ratio("downlink")),
    "uplink a round after": Column(
        "bytes up per round, after round {after}",
        _after("uplink_bytes", "round", human_bytes),
        "after",
    ),
    "downlink a round after": Column(
        "bytes down per round, after round {after}",
        _after("downlink_bytes", "round", human_bytes),
        "after",
    ),
    "left out": Column("entries left out, %", _with_interval("sparsity", 100, unit=" %")),
    "left out after": Column(
        "entries left out after step {after}, %",
        _after("uplink_entries", "uplink_entries_whole", lambda kept: f"{100 * (1 - kept):.2f}"),
        "after",
    ),
    "compression ratio up after": Column(
        "compression ratio up after step {after}",
        _after("uplink_bytes_float32", "uplink_bytes", "{:.1f}".format),
        "after",
    ),
    "time a round after": Column(
        "network time per round, after round {after}",
        _after("virtual_seconds", "round", human_seconds),
        "after",
    ),
    "reached": Column(
        "rounds or updates until {reached}", _until(["round"], "{:,.0f}".format), "reach"
    ),
    "uplink until": Column(
        "bytes up until {reached}", _until(["uplink_bytes"], human_bytes), "reach"
    ),
    "stays": Column(
        "rounds or updates until the {metric} stays {side} {bound}",
        _until(["round"], "{:,.0f}".format, stays_above),
        "reach",
    ),
    "uplink until it stays": Column(
        "bytes up until the {metric} stays {side} {bound}",
        _until(["uplink_bytes"], human_bytes, stays_above),
        "reach",
    ),
    "both until": Column(
        "bytes up and down until {reached}",
        _until(["uplink_bytes", "downlink_bytes"], human_bytes),
        "reach",
    ),
    "time until": Column(
        "network time until {reached}", _until(["virtual_seconds"], human_seconds), "reach"
    ),
    "time a round": Column(
        "network time per round", _ratio("virtual_seconds", "rounds", human_seconds)
    ),
    "rounds a second": Column("rounds per second", _ratio("rounds", "seconds", "{:.3g}".format)),
}


def remark(runs: Sequence[Run]) -> str:
    """Return a remark on a row: not run, diverged runs, failed replies; "" if there is none."""
    if not runs:
        return NOT_RUN
    said = []
    if diverged := sum(run.diverged for run in runs):
        said.append(f"{diverged} of {len(runs)} runs diverged")
    if failures := sum(run.result["failures"] for run in runs):
        said.append(f"{failures:,} {FAILED_REPLIES}" if failures > 1 else FAILED_REPLY)
    return ", ".join(said)
