"""Reads what a report shows: groups of runs with their histories, and the outcome of every run."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgewire.report.curves import evenly, legend
from edgewire.report.format import NOTHING, one_line
from edgewire.report.reader import ResultsError, readable
from edgewire.report.runs import (
    HISTORY,
    HYDRA,
    NOT_FINISHED,
    Group,
    Row,
    Run,
    ended_early,
    find_runs,
    group_runs,
    in_order,
    number,
    read_overrides,
    run_so_far,
    varying,
    whole_bytes,
    with_effect,
)
from edgewire.report.table import Cell, quantity, sent
from edgewire.task.metric import ACCURACY, Metric

MOST_ROWS = 120  # rows of a history that a picture uses
COLOURED = 12  # groups that pictures draw in colour
# settings of a run that its result holds, and that a comparison needs in common
CONDITIONS = ("dataset", "model", "objective", "nodes", "network", "partition", "data")
LESS = 1.2  # a group is compressed if its ratio is this many times the lowest ratio
CHECKPOINT = "checkpoint"
WAYS = {"uplink": "up", "downlink": "down"}


@dataclass(frozen=True, eq=False)
class ReportGroup(Group):
    """The runs that differ in the seed only.

    `label`: its overrides that differ between groups. `histories`: for each seed the rows that
    pictures use. `rank`: the place among the groups that pictures draw in colour, from 0; None for
    the other groups.
    """

    label: str
    histories: Mapping[int, list[Row]]
    rank: int | None = None

    @property
    def key(self) -> str:
        """The number that stands for the group in pictures, from 1; "" for a group in grey."""
        return "" if self.rank is None else str(self.rank + 1)

    @cached_property
    def task(self) -> tuple[Any, ...]:
        """What two groups must have in common so that their metrics can be compared."""
        known = {**self.overrides, **self.first}
        return (*(str(known.get(key)) for key in CONDITIONS), self.metric)

    @property
    def finished(self) -> bool:
        """Whether the runs are over; an unfinished run is in a group of such runs only."""
        return NOT_FINISHED not in self.overrides

    @cached_property
    def settings(self) -> dict[str, str]:
        """The resolved configuration of the first run, flat: key -> text; else the overrides."""
        for run in self.runs:
            if found := with_effect(run.configuration):
                return found
        return {key: one_line(value) for key, value in self.overrides.items()}

    @cached_property
    def value(self) -> float | None:
        """The mean of the main metric; None if no run was evaluated."""
        return self.mean(self.metric.name)

    def sent_mean(self, way: str) -> float:
        """Return the mean of all bytes that the runs sent in a direction."""
        return self.mean(sent(way)) or 0.0

    @cached_property
    def whole_ratio(self) -> float | None:
        """Flower's bytes in both directions, divided by the bytes sent; None if unknown."""

        sizes = [[whole_bytes(run.result, way) for way in WAYS] for run in self.runs]
        sent, plain = np.sum(sizes, axis=(0, 1))
        return float(plain / sent) if sent and plain else None


@dataclass(frozen=True)
class ReportRuns:
    """All that a report shows. `keys`: the overrides that differ between the groups.

    `metric`: the main metric of most groups. `records`: all runs, also those without a result.
    """

    groups: Sequence[ReportGroup]
    keys: Sequence[str]
    metric: Metric
    records: Sequence[RunRecord]

    @property
    def single(self) -> Run | None:
        """The run that the report is about; None if there are several, or if none has results."""
        return self.groups[0].runs[0] if len(self.records) == len(self.groups) == 1 else None

    @property
    def coloured(self) -> list[ReportGroup]:
        """The groups that pictures draw in colour, by their number."""
        found = (group for group in self.groups if group.rank is not None)
        return sorted(found, key=lambda group: group.rank or 0)


def load(folders: Iterable[Path]) -> ReportRuns:
    """Read the runs below some folders.

    Of a history only `MOST_ROWS` rows are kept. Raises `ResultsError` for a missing folder, and if
    there is no run at all.
    """
    tops = list(folders)
    runs, unfinished = find_runs(tops)
    if not runs and not unfinished:
        raise ResultsError(
            f"no run in {', '.join(map(str, tops))}: name the folder of a run or of a sweep, such "
            "as outputs/DATE/TIME or multirun/DATE/TIME"
        )
    so_far = {folder: readable(run_so_far, folder) for folder in unfinished}
    under_way = [run for run in so_far.values() if run is not None and len(run.history()) > 1]
    found = group_runs([*runs, *under_way])
    keys, labels = varying(found), labels_of(found)
    metrics = Counter(group.runs[0].metric for group in found)
    metric = metrics.most_common(1)[0][0] if metrics else ACCURACY
    groups, damaged = [], set()
    for group, label in zip(found, labels, strict=True):
        histories = {}
        for run in group.runs:
            if (rows := readable(run.history)) is None:
                damaged.add(run.folder)
            histories[run.seed] = thinned(rows or [], run.metric.name)
        groups.append(ReportGroup(group.overrides, group.runs, label, histories))
    groups = ranked(groups, metric)
    label_of = {id(run): group.label for group in groups for run in group.runs}
    records = [
        *(record_of(run, label_of.get(id(run)), run.folder in damaged) for run in runs),
        *(unfinished_record(each, why, so_far[each]) for each, why in unfinished.items()),
    ]
    return ReportRuns(groups, keys, metric, records)


def labels_of(groups: Sequence[Group]) -> list[str]:
    """Return a text for each group: the values of the overrides that differ, or the preset."""
    if len(groups) == 1:
        mark = " (not finished)" * (NOT_FINISHED in groups[0].overrides)
        return [one_line(str(groups[0].runs[0].result.get("algorithm") or "run")) + mark]
    return [label.replace("@", " ") for label in legend(groups)]


def ranked(groups: Sequence[ReportGroup], metric: Metric) -> list[ReportGroup]:
    """Number the groups that are drawn in colour: all, or of many the best."""
    able = [group for group in groups if group.metric == metric]
    if len(able) > COLOURED:
        sign = -1 if metric.higher else 1
        able.sort(key=lambda group: math.inf if group.value is None else sign * group.value)
    places = {id(group): place for place, group in enumerate(able[:COLOURED])}
    return [replace(group, rank=places.get(id(group))) for group in groups]


def thinned(rows: list[Row], main: str, most: int = MOST_ROWS) -> list[Row]:
    """Return at most about twice `most` rows: evenly chosen evaluations, and other rows.

    The first and the last row and the first and last evaluation are always chosen. Runs of equal
    length have rows of the same rounds.
    """
    if len(rows) <= most:
        return rows
    evaluated = [at for at, row in enumerate(rows) if number(row.get(main)) is not None]
    chosen = {*evenly(range(len(rows)), most), *evenly(evaluated, most)}
    return [rows[at] for at in sorted(chosen)]


def reference_of(group: ReportGroup, groups: Sequence[ReportGroup]) -> ReportGroup | None:
    """Return the group to compare a compressed group with; None if there is none.

    It is one of the least compressed groups of the same task whose runs have all finished, and none
    has diverged: the one that differs in the fewest overrides. A group counts as compressed if its
    ratio is well above the lowest.
    """
    if (own := group.whole_ratio) is None or not group.finished:
        return None
    same = [g for g in groups if g.task == group.task and g.value is not None and g.finished]
    same = [g for g in same if not any(r.diverged or ended_early(r.result) for r in g.runs)]
    ratios = [(r, g) for g in same if (r := g.whole_ratio) is not None]
    lowest = min((ratio for ratio, _ in ratios), default=own)
    if own < LESS * lowest:
        return None
    least = [g for ratio, g in ratios if ratio < (LESS + 1) / 2 * lowest]
    overrides = group.overrides.items()
    return min(least, key=lambda other: len(overrides ^ other.overrides.items()), default=None)


# The outcome of a run


@dataclass(frozen=True)
class RunRecord:
    """A line of the table of all runs. `outcome`: "finished", or why the run did not finish.

    `row`: the run's result, or its last row. `command`: repeats a finished run, and resumes or
    repeats another. `value`: of the main metric. `fine`: whether nothing needs a look.
    """

    folder: Path
    group: str
    seed: str
    outcome: str
    row: Row
    command: str = NOTHING
    value: Cell | None = None
    fine: bool = False

    def count(self, key: str) -> float | None:
        """Return a number of the run; None if it is missing or no number."""
        return number(self.row.get(key))


def repeat_command(folder: Path) -> str:
    """Return the command that starts a new run with a run's configuration."""
    # Hydra reads a relative path as one beside run.py
    return f"python run.py --config-path {shlex.quote(str((folder / HYDRA).resolve()))} " + (
        "--config-name config"
    )


def record_of(run: Run, label: str | None, damaged: bool) -> RunRecord:
    """Return the line of a run with a result.

    `label`: its group's; None if a later run with the same seed counts. `damaged`: whether its
    history cannot be read.
    """
    assert run.folder is not None
    result = run.result
    outcome = "finished"
    if run.diverged:
        why = result.get("stopped")
        outcome = f"diverged: {one_line(why)}" if why else "diverged"
    elif ended_early(result):
        outcome = f"ended at {result['round']:g} of {result['rounds']:g}"
    elif label is None:
        outcome = "repeated: a later run with this seed counts"
    if damaged:
        outcome += f", but its {HISTORY} cannot be read: it has no curves and no times over links"
    group = label or one_line(in_order(run.overrides)) or NOTHING
    value = quantity(number(result.get(run.metric.name)), run.metric.text)
    fine, command = outcome == "finished", repeat_command(run.folder)
    return RunRecord(run.folder, group, str(run.seed), outcome, result, command, value, fine)


def unfinished_record(folder: Path, why: str, run: Run | None) -> RunRecord:
    """Return the line of a run without a usable result: why, and how to go on; `run`: so far."""
    overrides = readable(read_overrides, folder) or {}
    seed = overrides.pop("seed", NOTHING)
    label = one_line(in_order(with_effect(overrides))) or NOTHING
    command = repeat_command(folder)
    if (folder / CHECKPOINT).is_file():
        command = f"python run.py {shlex.quote(f'resume={folder.resolve()}')}"
    return RunRecord(folder, label, one_line(seed), why, run.result if run else {}, command)
