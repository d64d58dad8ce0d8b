"""The columns of a page's tables. A column turns a row's runs into text for a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from report.errors import ResultsError
from report.estimate import Estimate, estimate, paired
from report.format import human_bytes, human_seconds
from report.learning_curve import Row, first_at, stays_above
from report.run_archive import ArchivedRun

NOTHING = "-"
NOT_RUN = "not run yet"
ONE_SEED = " (one seed)"
PAPER_HEAD = "paper's accuracy, %"
REMARKS = "remarks"  # the head of the column with `remark`
FAILED_REPLY, FAILED_REPLIES = "1 failed reply", "failed replies"


class Rendered(NamedTuple):
    """A value as two texts: for a table's cell, and with its unit for a sentence."""

    cell: str
    sentence: str


@dataclass(frozen=True)
class RowContext:
    """A row's runs, in the order of their seeds, and the table's settings that columns need.

    `against`: the runs of the row to compare with. `reach`: an accuracy in %. `after`: a round.
    """

    runs: Sequence[ArchivedRun]
    against: Sequence[ArchivedRun] = ()
    reach: float | None = None
    after: int | None = None


Show = Callable[[RowContext], Rendered]


class PageColumn(NamedTuple):
    """A column: its head, and the function that makes its text from a row.

    `needs`: the name of the table's setting that the column requires, or "".
    """

    head: str
    show: Show
    needs: str = ""


def _values(runs: Sequence[ArchivedRun], key: str, scale: float = 1) -> dict[int, float]:
    """Return a dict from seeds to the runs' numbers `key`, without runs that lack this number."""
    found = {run.seed: run.numbers[key] for run in runs}
    return {seed: value * scale for seed, value in found.items() if value is not None}


def decimals(value: float, places: int) -> str:
    """Return a number with `places` decimals; zero has no sign."""
    text = f"{value:.{places}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def with_interval(found: Estimate, places: int = 2) -> str:
    """Return an estimate as text, such as '85.12 ± 0.21'; without an interval only its mean."""
    mean = decimals(found.mean, places)
    return mean if found.half is None else f"{mean} ± {decimals(found.half, places)}"


def _of_how_many(found: Estimate, runs: int) -> str:
    """Return a remark on a single seed, or on values that some runs lack; else ""."""
    if found.count < runs:
        return f" ({found.count} of {runs} runs)"
    return ONE_SEED if found.count == 1 else ""


def _measured(key: str, scale: float = 1, places: int = 2, unit: str = "") -> Show:
    def show(row: RowContext) -> Rendered:
        if not (values := _values(row.runs, key, scale)):
            return Rendered(NOTHING, NOTHING)
        found = estimate(list(values.values()))
        text, remark = with_interval(found, places), _of_how_many(found, len(row.runs))
        return Rendered(text + remark, text + unit + remark)

    return show


def _compared(row: RowContext, key: str = "accuracy") -> Estimate | None:
    """Return the mean difference between a row and the row `against`, in percentage points.

    The mean is over the seeds that both rows have. None: the rows have no seed in common.
    """
    ours, theirs = (_values(runs, key, 100) for runs in (row.runs, row.against))
    return paired(ours, theirs)


def _points(row: RowContext, key: str = "accuracy") -> Rendered:
    if row.runs == row.against:
        return Rendered("", NOTHING)
    if (found := _compared(row, key)) is None:
        return Rendered(NOTHING, NOTHING)
    text, remark = with_interval(found), _of_how_many(found, len(row.runs))
    return Rendered(text + remark, f"{text} points{remark}")


def _difference(row: RowContext, key: str = "accuracy") -> Rendered:
    """Show the difference from the row `against` in points; say "noise" if it may be 0."""
    points, found = _points(row, key), _compared(row, key)
    if row.runs == row.against or found is None or not found.noise:
        return points
    return Rendered(f"{points.cell}, noise", f"{points.sentence}, within the noise")


def _verdict(row: RowContext) -> Rendered:
    """Return how a row's accuracy compares with that of the row `against`, such as "above"."""
    found = _compared(row)
    if found is None or found.half is None:
        text = "not yet told apart from"
    elif found.noise:
        text = "within the noise of"
    else:
        text = "above" if found.mean > 0 else "below"
    return Rendered(text, text)


def _mean(key: str, form: Callable[[float], str], scale: float = 1) -> Show:
    def show(row: RowContext) -> Rendered:
        values = list(_values(row.runs, key, scale).values())
        text = form(fmean(values)) if values else NOTHING
        return Rendered(text, text)

    return show


def _ratio(above: str, below: str, form: Callable[[float], str]) -> Show:
    """Show a ratio: the result `above`, summed over the row's runs, over the result `below`."""

    def show(row: RowContext) -> Rendered:
        top, bottom = (sum(_values(row.runs, key).values()) for key in (above, below))
        text = form(top / bottom) if bottom else NOTHING
        return Rendered(text, text)

    return show


def _until(
    keys: Sequence[str],
    form: Callable[[float], str],
    find: Callable[[Sequence[Row], float], Row | None] = first_at,
) -> Show:
    """Show the sum of the counters `keys` when a run reaches the table's accuracy (`reach`).

    `find` returns the row of the run's history at which the run reaches an accuracy (0..1), or
    None.
    """

    def show(row: RowContext) -> Rendered:
        found = [find(run.rows(), (row.reach or 0) / 100) for run in row.runs]
        there = [sum(at[key] or 0 for key in keys) for at in found if at is not None]
        if not there:
            return Rendered("never", "never")
        part = "" if len(there) == len(found) else f" ({len(there)} of {len(found)} runs)"
        return Rendered(form(fmean(there)) + part, form(fmean(there)) + part)

    return show


def _after(above: str, below: str, form: Callable[[float], str]) -> Show:
    """Show by how much the counter `above` grew, divided by the growth of the counter `below`.

    Both are counted only after the table's round `after`.
    """

    def show(row: RowContext) -> Rendered:
        lived = [run for run in row.runs if not run.diverged]  # others may end before this round
        grown = [_grown(run, row.after or 0, (above, below)) for run in lived]
        if not grown:
            return Rendered(NOTHING, NOTHING)
        top, bottom = (sum(values) for values in zip(*grown, strict=True))
        text = form(top / bottom) if bottom else NOTHING
        return Rendered(text, text)

    return show


def _grown(run: ArchivedRun, after: int, keys: Sequence[str]) -> list[float]:
    """Return how much a run's counters grew after the round `after`.

    Raises `ResultsError` if this round has no evaluation.
    """
    rows = run.rows()
    start = next((row for row in rows if row["round"] == after), None)
    if start is None or any(row.get(key) is None for row in (start, rows[-1]) for key in keys):
        raise ResultsError(f"{run.overrides}: nothing is kept of what was counted at round {after}")
    return [(rows[-1][key] or 0) - (start[key] or 0) for key in keys]


def _seeds(row: RowContext) -> Rendered:
    seeds = sorted(run.seed for run in row.runs)
    whole = seeds == list(range(seeds[0], seeds[-1] + 1))
    text = f"{seeds[0]} to {seeds[-1]}" if whole and len(seeds) > 3 else ", ".join(map(str, seeds))
    return Rendered(text, text)


COLUMNS: dict[str, PageColumn] = {
    "accuracy": PageColumn("accuracy, %", _measured("accuracy", 100, unit=" %")),
    "difference": PageColumn('difference from "{against}", points', _difference, "against"),
    "points": PageColumn('difference from "{against}", points', _points, "against"),
    "best difference": PageColumn(
        'best accuracy, difference from "{against}", points',
        lambda row: _difference(row, "best_accuracy"),
        "against",
    ),
    "verdict": PageColumn("compared with {against}", _verdict, "against"),
    "seeds": PageColumn("seeds", _seeds),
    "best accuracy": PageColumn("best accuracy, %", _measured("best_accuracy", 100, unit=" %")),
    "top5": PageColumn("top-5 accuracy, %", _measured("top5", 100, unit=" %")),
    "loss": PageColumn("test loss", _measured("loss", places=3)),
    "rounds": PageColumn("rounds", _mean("rounds", "{:,.10g}".format)),
    "updates": PageColumn("applied updates", _mean("client_updates", "{:,.10g}".format)),
    "uplink": PageColumn("bytes up", _mean("uplink_bytes", human_bytes)),
    "downlink": PageColumn("bytes down", _mean("downlink_bytes", human_bytes)),
    "uplink an update": PageColumn(
        "bytes up per update", _ratio("uplink_bytes", "client_updates", human_bytes)
    ),
    "downlink an update": PageColumn(
        "bytes down per update", _ratio("downlink_bytes", "client_updates", human_bytes)
    ),
    "compression ratio up": PageColumn(
        "compression ratio up", _ratio("uplink_bytes_float32", "uplink_bytes", "{:.2f}".format)
    ),
    "compression ratio down": PageColumn(
        "compression ratio down",
        _ratio("downlink_bytes_float32", "downlink_bytes", "{:.2f}".format),
    ),
    "uplink a round after": PageColumn(
        "bytes up per round, after round {after}",
        _after("uplink_bytes", "round", human_bytes),
        "after",
    ),
    "downlink a round after": PageColumn(
        "bytes down per round, after round {after}",
        _after("downlink_bytes", "round", human_bytes),
        "after",
    ),
    "left out": PageColumn("entries left out, %", _measured("sparsity", 100, unit=" %")),
    "left out after": PageColumn(
        "entries left out after step {after}, %",
        _after("uplink_entries", "uplink_entries_whole", lambda kept: f"{100 * (1 - kept):.2f}"),
        "after",
    ),
    "compression ratio up after": PageColumn(
        "compression ratio up after step {after}",
        _after("uplink_bytes_float32", "uplink_bytes", "{:.1f}".format),
        "after",
    ),
    "time a round after": PageColumn(
        "network time per round, after round {after}",
        _after("virtual_seconds", "round", human_seconds),
        "after",
    ),
    "reached": PageColumn(
        "rounds or updates until {reach} % accuracy", _until(["round"], "{:,.0f}".format), "reach"
    ),
    "uplink until": PageColumn(
        "bytes up until {reach} % accuracy", _until(["uplink_bytes"], human_bytes), "reach"
    ),
    "stays": PageColumn(
        "rounds or updates until the accuracy stays above {reach} %",
        _until(["round"], "{:,.0f}".format, stays_above),
        "reach",
    ),
    "uplink until it stays": PageColumn(
        "bytes up until the accuracy stays above {reach} %",
        _until(["uplink_bytes"], human_bytes, stays_above),
        "reach",
    ),
    "downlink until": PageColumn(
        "bytes down until {reach} % accuracy", _until(["downlink_bytes"], human_bytes), "reach"
    ),
    "both until": PageColumn(
        "bytes up and down until {reach} % accuracy",
        _until(["uplink_bytes", "downlink_bytes"], human_bytes),
        "reach",
    ),
    "time until": PageColumn(
        "network time until {reach} % accuracy", _until(["virtual_seconds"], human_seconds), "reach"
    ),
    "time a round": PageColumn(
        "network time per round", _ratio("virtual_seconds", "rounds", human_seconds)
    ),
    "virtual time": PageColumn("network time", _mean("virtual_seconds", human_seconds)),
    "rounds a second": PageColumn(
        "rounds per second", _ratio("rounds", "seconds", "{:.3g}".format)
    ),
    "minutes": PageColumn("minutes per run", _mean("seconds", "{:.1f}".format, 1 / 60)),
}


def remark(runs: Sequence[ArchivedRun]) -> str:
    """Return a remark on a row: not run, diverged runs, failed replies; "" if there is none."""
    if not runs:
        return NOT_RUN
    said = []
    if diverged := sum(run.diverged for run in runs):
        said.append(f"{diverged} of {len(runs)} runs diverged")
    if failures := round(sum(run.numbers["failures"] or 0 for run in runs)):
        said.append(f"{failures:,} {FAILED_REPLIES}" if failures > 1 else FAILED_REPLY)
    return ", ".join(said)
