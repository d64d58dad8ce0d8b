"""The columns of all tables of runs. A column turns the runs of a row into text for a cell.

The result pages name columns in their definitions (papers/pages/NAME.yaml). `edgewire.report.table`
has the columns that its list `SWEEP` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from edgewire.report.errors import ResultsError
from edgewire.report.estimate import Estimate, estimate, paired
from edgewire.report.format import NOTHING, human_bytes, human_seconds, percent
from edgewire.report.learning_curve import first_at, stays_above
from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.runs import BESIDE, Row, Run
from edgewire.report.summary import whole_bytes

NOT_RUN = "not run yet"
ONE_SEED = " (one seed)"
PAPER_HEAD = "paper's {metric_unit}"
REMARKS = "remarks"  # the head of the column with `remark`
FAILED_REPLY, FAILED_REPLIES = "1 failed reply", "failed replies"

# a number of a run: a key of its result, or a function of its result; None if the run lacks it
Measure = str | Callable[[dict[str, Any]], float | None]


class Rendered(NamedTuple):
    """A value as two texts: for a table's cell, and with its unit for a sentence."""

    cell: str
    sentence: str


@dataclass(frozen=True)
class TableRow:
    """A row's runs, in the order of their seeds, and the table's settings that columns need.

    `against`: the runs of the row to compare with. `reach`: a value of the main metric, in % for a
    share. `after`: a round. `metric`: the runs' main metric.
    """

    runs: Sequence[Run]
    against: Sequence[Run] = ()
    reach: float | None = None
    after: int | None = None

    @property
    def metric(self) -> MainMetric:
        """The runs' main metric."""
        return main_metric(self.runs)

    def estimate(self, measure: Measure) -> Estimate | None:
        """Return the estimate of a number over the runs that have it; None if no run has it."""
        return estimate(by_seed(self.runs, measure).values())

    def mean(self, measure: Measure) -> float | None:
        """Return the mean of a number over the runs that have it; None if no run has it."""
        found = self.estimate(measure)
        return None if found is None else found.mean

    def ratio(self, above: Measure, below: Measure) -> float | None:
        """Return the sum of a number over the runs, divided by that of another; None if unknown."""
        top, bottom = (sum(by_seed(self.runs, each).values()) for each in (above, below))
        return top / bottom if top and bottom else None

    @cached_property
    def reached(self) -> list[Row | None]:
        """For each run the evaluation at which it reaches the accuracy `reach`; or None."""
        return self._at(first_at)

    @cached_property
    def stays(self) -> list[Row | None]:
        """For each run the evaluation from which on it stays above `reach`; or None."""
        return self._at(stays_above)

    def _at(
        self, find: Callable[[Sequence[Row], float, MainMetric], Row | None]
    ) -> list[Row | None]:
        if self.reach is None:
            return []
        shares = {True: self.reach / 100, False: self.reach}
        return [find(r.evaluations(), shares[r.metric.share], r.metric) for r in self.runs]


def main_metric(runs: Iterable[Run]) -> MainMetric:
    """Return the main metric of the first run; the accuracy if there is no run."""
    return next((run.metric for run in runs), ACCURACY)


def by_seed(runs: Iterable[Run], measure: Measure, scale: float = 1) -> dict[int, float]:
    """Return a number of each run that has it, times `scale`: seed -> number."""
    found = {
        run.seed: run.result.get(measure) if isinstance(measure, str) else measure(run.result)
        for run in runs
    }
    return {seed: value * scale for seed, value in found.items() if value is not None}


Show = Callable[[TableRow], Rendered]


class Column(NamedTuple):
    """A column: its head, and the function that makes its text from a row.

    `needs`: the name of the table's setting that the column requires, or "".
    """

    head: str
    show: Show
    needs: str = ""


def decimals(value: float, places: int) -> str:
    """Return a number with `places` decimals; zero has no sign."""
    text = f"{value:.{places}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def with_interval(found: Estimate, places: int = 2) -> str:
    """Return an estimate as text, such as '85.12 ± 0.21'; without an interval only its mean."""
    mean = decimals(found.mean, places)
    return mean if found.half is None else f"{mean} ± {decimals(found.half, places)}"


def _same(text: str) -> Rendered:
    return Rendered(text, text)


def _text(value: Callable[[TableRow], float | None], form: Callable[[float], str]) -> Show:
    """Show the value of a row; "-" if the row has none."""

    def show(row: TableRow) -> Rendered:
        found = value(row)
        return _same(NOTHING if found is None else form(found))

    return show


def _mean(measure: Measure, form: Callable[[float], str]) -> Show:
    """Show the mean over the runs."""
    return _text(lambda row: row.mean(measure), form)


def _ratio(above: Measure, below: Measure, form: Callable[[float], str]) -> Show:
    """Show the sum of the number `above` over the runs, divided by that of the number `below`."""
    return _text(lambda row: row.ratio(above, below), form)


def _with_deviation(key: str, share: bool = True) -> Show:
    """Show the mean of a number with its sample standard deviation; a share in %."""

    def show(row: TableRow) -> Rendered:
        found = row.estimate(key)
        if not share:
            return _same(_spread(found))
        if found is None or found.std is None:
            return _same(percent(None if found is None else found.mean))
        return _same(f"{100 * found.mean:.2f} ± {100 * found.std:.2f} %")

    return show


def _spread(found: Estimate | None) -> str:
    if found is None:
        return NOTHING
    return f"{found.mean:.4g}" if found.std is None else f"{found.mean:.4g} ± {found.std:.2g}"


def main_columns(metric: MainMetric) -> dict[str, Column]:
    """Return the columns of `edgewire.report.table` for a main metric other than the accuracy."""
    names = {metric.name: metric.name, f"best {metric.name}": f"best_{metric.name}"}
    return {
        f"sweep: {h}": Column(h, _with_deviation(key, metric.share)) for h, key in names.items()
    }


def _with_interval(key: str, scale: float = 1, places: int = 2, unit: str = "") -> Show:
    """Show the mean over the runs with its 95 % interval."""

    def show(row: TableRow) -> Rendered:
        if (found := estimate(by_seed(row.runs, key, scale).values())) is None:
            return _same(NOTHING)
        text, remark = with_interval(found, places), _of_how_many(found, len(row.runs))
        return Rendered(text + remark, text + unit + remark)

    return show


def _main(best: bool = False) -> Show:
    """Show the mean of the main metric, or of its best value, with its 95 % interval."""

    def show(row: TableRow) -> Rendered:
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


def _compared(row: TableRow, best: bool = False) -> Estimate | None:
    """Return the mean difference of the main metric from the row `against`; of a share in points.

    `best`: compare the best values. The mean is over the seeds that both rows have. None: the rows
    have no seed in common.
    """
    metric = row.metric
    key = f"best_{metric.name}" if best else metric.name
    return paired(*(by_seed(runs, key, metric.scale) for runs in (row.runs, row.against)))


def _points(row: TableRow, best: bool = False) -> Rendered:
    if row.runs == row.against:
        return Rendered("", NOTHING)
    if (found := _compared(row, best)) is None:
        return _same(NOTHING)
    text = with_interval(found, row.metric.places(found.mean))
    remark = _of_how_many(found, len(row.runs))
    return Rendered(text + remark, f"{text}{' points' * row.metric.share}{remark}")


def _difference(row: TableRow, best: bool = False) -> Rendered:
    """Show the difference from the row `against`; say "noise" if it may be 0."""
    points, found = _points(row, best), _compared(row, best)
    if row.runs == row.against or found is None or not found.noise:
        return points
    return Rendered(f"{points.cell}, noise", f"{points.sentence}, within the noise")


def _verdict(row: TableRow) -> Rendered:
    """Return how a row compares with the row `against`: "above", or "better than" if less is."""
    found = _compared(row)
    if found is None or found.half is None:
        return _same("not yet told apart from")
    if found.noise:
        return _same("within the noise of")
    if row.metric.higher:
        return _same("above" if found.mean > 0 else "below")
    return _same("better than" if found.mean < 0 else "worse than")


def _until(keys: Sequence[str], form: Callable[[float], str], when: str = "reached") -> Show:
    """Show the sum of the counters `keys` when a run reaches the table's bound (`reach`).

    The mean is over the runs that reach it. `when`: a property of `TableRow`.
    """

    def show(row: TableRow) -> Rendered:
        found = attrgetter(when)(row)
        there = [sum(at[key] or 0 for key in keys) for at in found if at is not None]
        if not there:
            return _same("never")
        part = "" if len(there) == len(found) else f" ({len(there)} of {len(found)} runs)"
        return _same(form(fmean(there)) + part)

    return show


def until_all(row: TableRow, key: str) -> float | None:
    """Return the mean of a counter when the runs reach `reach`; None if a run never reaches it."""
    there = [at[key] for at in row.reached if at is not None]
    return fmean(there) if there and len(there) == len(row.runs) else None


def _after(above: str, below: str, form: Callable[[float], str]) -> Show:
    """Show by how much the counter `above` grew, divided by the growth of the counter `below`.

    Both are counted only after the table's round `after`.
    """

    def ratio(row: TableRow) -> float | None:
        lived = [run for run in row.runs if not run.diverged]  # others may end before this round
        grown = [_grown(run, row.after or 0, (above, below)) for run in lived]
        top, bottom = (sum(values) for values in zip(*grown, strict=True)) if grown else (0, 0)
        return top / bottom if bottom else None

    return _text(ratio, form)


def _grown(run: Run, after: int, keys: Sequence[str]) -> list[float]:
    """Return how much a run's counters grew after the round `after`.

    Raises `ResultsError` if this round has no evaluation.
    """
    rows = run.evaluations()
    start = next((row for row in rows if row["round"] == after), None)
    if start is None or any(row.get(key) is None for row in (start, rows[-1]) for key in keys):
        raise ResultsError(f"{run.settings}: nothing is kept of what was counted at round {after}")
    return [rows[-1][key] - start[key] for key in keys]


def payload(result: dict[str, Any]) -> float:
    """Return the mean bytes of a run's payloads, one for each client update."""
    return float(result["uplink_bytes"] / max(result["client_updates"], 1))


def sent(way: str) -> Measure:
    """Return the measure of all bytes that a run sent. `way`: "uplink" or "downlink"."""
    return lambda result: whole_bytes(result, way)[0]


def plain(way: str) -> Measure:
    """Return the measure of all bytes that Flower would have sent. `way`: as in `sent`."""
    return lambda result: whole_bytes(result, way)[1]


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
        _until(["round"], "{:,.0f}".format, "stays"),
        "reach",
    ),
    "uplink until it stays": Column(
        "bytes up until the {metric} stays {side} {bound}",
        _until(["uplink_bytes"], human_bytes, "stays"),
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
    # The columns of `edgewire.report.table` have shorter heads, and the standard deviation in place
    # of the interval. Their bytes are those of whole messages; the columns above count payloads
    # only.
    "sweep: runs": Column("runs", lambda row: _same(str(len(row.runs)))),
    "sweep: accuracy": Column("accuracy", _with_deviation("accuracy")),
    "sweep: best accuracy": Column("best accuracy", _with_deviation("best_accuracy")),
    "sweep: top5": Column("top5", _with_deviation("top5")),
    "sweep: loss": Column("loss", _mean("loss", "{:.4g}".format)),
    "sweep: reached": Column(
        "reached at", _text(lambda row: until_all(row, "round"), "{:.10g}".format)
    ),
    "sweep: uplink until": Column(
        "payloads until then", _text(lambda row: until_all(row, "uplink_bytes"), human_bytes)
    ),
    "sweep: payload": Column("payload an update", _mean(payload, human_bytes)),
    "sweep: uplink": Column("sent up", _mean(sent("uplink"), human_bytes)),
    "sweep: compression ratio up": Column(
        "compression ratio up", _ratio(plain("uplink"), sent("uplink"), "{:.2f}".format)
    ),
    "sweep: downlink": Column("sent down", _mean(sent("downlink"), human_bytes)),
    "sweep: compression ratio down": Column(
        "compression ratio down", _ratio(plain("downlink"), sent("downlink"), "{:.2f}".format)
    ),
    "sweep: updates": Column("updates", _mean("client_updates", "{:.10g}".format)),
    "sweep: failed": Column("failed", _mean("failures", "{:.10g}".format)),
    "sweep: time": Column("time", _mean("seconds", human_seconds)),
    "sweep: virtual time": Column("virtual time", _mean("virtual_seconds", human_seconds)),
    "sweep: time a round": Column("a round", _ratio("virtual_seconds", "rounds", human_seconds)),
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
