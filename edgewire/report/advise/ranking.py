"""Ranks measured settings by the time until they reach a goal on a link."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from edgewire.conf.network import Network
from edgewire.report.advise.candidates import ARCHIVED, Measured
from edgewire.report.advise.energy import Radio, joules
from edgewire.report.advise.options import share_of
from edgewire.report.errors import ResultsError
from edgewire.report.link_time import Progress, link_seconds
from edgewire.report.metric import LOSS, MainMetric

SHARE = 0.98  # the default goal: this share of the best uncompressed value
HIDDEN = (  # keys that a short name of settings leaves out
    *("algorithm", "lr", "rounds", "eval_every", "nodes", "task", "dataset", "model", "network"),
    *("strategy.pushes", "engine.workers", "experiment", "batch_size", "verbose"),
)


class Goal(NamedTuple):
    """A bound of a metric, and how it was chosen."""

    metric: MainMetric
    bound: float
    why: str = ""

    @property
    def text(self) -> str:
        """The goal as text: "accuracy 95.00 %", or "mae 0.1282"."""
        return f"{self.metric.name} {self.metric.text(self.bound)}"


class Reached(NamedTuple):
    """When one run reaches a goal over a link, and what a device has done until then.

    `by_mean_curve`: the mean of the values of several runs decides, so `seconds` can be outside the
    range of the single runs.
    """

    seconds: float
    spent: Progress
    rounds: float
    by_mean_curve: bool = False


@dataclass(frozen=True)
class Ranked:
    """The runs with the same settings, and when they reach the goal.

    `at`: when the mean of the runs' values reaches the goal, None if no run does; `reached`: one
    entry per run that reaches it; `best`: the mean of their best values, None if a run has none;
    `joules`: of one device's radio until `at`.
    """

    runs: Sequence[Measured]
    at: Reached | None
    reached: Sequence[Reached]
    best: float | None
    joules: float | None = None

    @property
    def count(self) -> int:
        """The number of runs."""
        return len(self.runs)

    @property
    def settings(self) -> str:
        """The overrides of these settings."""
        return self.runs[0].settings

    @property
    def name(self) -> str:
        """A short name: the algorithm, and options that are not its own."""
        return short_name(self.runs[0].overrides)

    @property
    def seconds(self) -> float:
        """The time to the goal; infinity if no run reaches it."""
        return math.inf if self.at is None else self.at.seconds

    @property
    def always(self) -> bool:
        """Whether all runs reach the goal."""
        return len(self.reached) == self.count


def short_name(overrides: Mapping[str, str]) -> str:
    """Return the algorithm, and those options that are not the task's or the run's length."""
    others = [
        f"{key}={value}"
        for key, value in sorted(overrides.items())
        if key not in HIDDEN and not key.startswith("network") and "warmup_steps" not in key
    ]
    return " ".join([overrides.get("algorithm", "default"), *others])


def default_goal(runs: Sequence[Measured], share: float = SHARE) -> Goal:
    """Return a share of the best uncompressed value.

    If less is better, the goal is (2 - share) times the best value. Raises `ResultsError` without
    an uncompressed run.
    """
    metric = runs[0].run.metric
    means = [
        best
        for same in grouped([run for run in runs if run.uncompressed])
        if (best := _best(same, metric)) is not None
    ]
    if (best := metric.best(means)) is None:
        raise ResultsError("no run without compression gives a goal: give one by --accuracy")
    bound = best - abs(best) * (1 - share) * (1 if metric.higher else -1)
    part = f"{share:.0%}" if metric.higher else f"{2 - share:.0%}"
    text = f"{part.replace('%', ' %')} of the best without compression, {metric.text(best)}"
    return Goal(metric, bound, text)


def asked_goal(runs: Sequence[Measured], name: str | None, value: float) -> Goal:
    """Return the goal that the user gave: a bound of the metric `name`, or of the main metric.

    A share of 2 or more is a percentage. Raises `ResultsError` for a bound that has no sense.
    """
    main = runs[0].run.metric
    metric = main
    if name is not None and name != main.name:
        if name != LOSS.name or all(row.get(LOSS.name) is None for row in runs[0].rows):
            raise ResultsError(f"these runs measure the {main.name}: give the goal by --reach")
        metric = LOSS
    if not math.isfinite(value):
        raise ResultsError(f"the goal must be a number, not {value}")
    return Goal(metric, share_of(value) if metric.share else value)


def grouped(runs: Sequence[Measured]) -> list[list[Measured]]:
    """Return the runs that differ in the seed only, together; the last run of a seed counts."""
    groups: dict[tuple[str, str], dict[int, Measured]] = {}
    for run in runs:
        groups.setdefault(run.key, {})[run.run.seed] = run
    return [list(seeds.values()) for seeds in groups.values()]


def reached(
    run: Measured, goal: Goal, network: Network, nodes: int | None = None
) -> Reached | None:
    """Return when a run reaches the goal over a link; None if it never does.

    `nodes`: the number of devices, None: as in the run. They share the server's link, if it is
    limited.
    """
    for at, row in enumerate(run.rows):
        value = row.get(goal.metric.name)
        if value is not None and goal.metric.reaches(value, goal.bound):
            return _at_row(run, at, network, nodes)
    return None


def mean_reached(
    runs: Sequence[Measured],
    hits: Sequence[Reached],
    goal: Goal,
    network: Network,
    nodes: int | None = None,
) -> Reached | None:
    """Return when the mean of the values of runs with the same settings reaches the goal.

    A single run can be lucky and reach the goal early. The mean says better when another run will
    reach it. `hits`: when the runs themselves reach the goal. Their mean is returned if the runs
    were not evaluated in the same rounds, or if the mean of their values does not reach the goal.
    """
    if not hits:
        return None
    name = goal.metric.name
    values = [[row.get(name) for row in run.rows] for run in runs]
    rounds = {tuple(row["round"] for row in run.rows) for run in runs}
    if len(rounds) == 1 and not any(value is None for each in values for value in each):
        means = [fmean(column) for column in zip(*values, strict=True)]
        for at, value in enumerate(means):
            if goal.metric.reaches(value, goal.bound):
                hits = [_at_row(run, at, network, nodes) for run in runs]
                return _mean(hits)._replace(by_mean_curve=True)
    return _mean(hits)


def _mean(hits: Sequence[Reached]) -> Reached:
    spent = [hit.spent for hit in hits]
    steps = [each.steps for each in spent if each.steps is not None]
    return Reached(
        fmean(hit.seconds for hit in hits),
        Progress(
            fmean(each.cycles for each in spent),
            fmean(each.down for each in spent),
            fmean(each.up for each in spent),
            fmean(steps) if steps else None,
        ),
        fmean(hit.rounds for hit in hits),
    )


def _at_row(run: Measured, at: int, network: Network, nodes: int | None) -> Reached:
    """Return the time of a row of a run's history over a link."""
    share = max(1, round((nodes or run.nodes) * run.replies / run.nodes))
    seconds = link_seconds(run.progress[: at + 1], network, share, run.asynchronous)
    return Reached(seconds[-1], run.progress[at], float(run.rows[at]["round"]))


def rank(
    runs: Sequence[Measured],
    goal: Goal,
    network: Network,
    nodes: int | None = None,
    radio: Radio | None = None,
) -> list[Ranked]:
    """Return the settings, the soonest first.

    Settings of which not all runs reach the goal follow, and then those of which none does, the
    best first. The user's own runs come before those of the project, if both have reached the goal
    in the same time.
    """
    found = []
    for same in grouped(runs):
        hits = [hit for run in same if (hit := reached(run, goal, network, nodes)) is not None]
        at = mean_reached(same, hits, goal, network, nodes)
        energy = None
        if radio is not None and at is not None:
            energy = joules(radio, network, at.spent, at.seconds)
        found.append(Ranked(same, at, hits, _best(same, goal.metric), energy))

    def order(each: Ranked) -> tuple[float, float, float, bool]:
        worth = -math.inf if each.best is None else each.best
        worth = worth if goal.metric.higher or each.best is None else -each.best
        share = len(each.reached) / each.count
        return -share, each.seconds, -worth, each.runs[0].of == ARCHIVED

    return sorted(found, key=order)


def _best(runs: Sequence[Measured], metric: MainMetric) -> float | None:
    """Return the mean of the runs' best values; None if a run has no value."""
    values = ([row.get(metric.name) for row in run.rows] for run in runs)
    bests = [metric.best([value for value in each if value is not None]) for each in values]
    known = [best for best in bests if best is not None]
    return fmean(known) if len(known) == len(bests) else None
