"""Reads what a report shows: groups of runs with their histories, and the runs without a result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from edgewire.report.curves import evenly, legend
from edgewire.report.errors import ResultsError
from edgewire.report.format import NOTHING, one_line
from edgewire.report.html.run_records import (
    NOT_FINISHED,
    RunRecord,
    ended_early,
    foreign_record,
    record_of,
    run_so_far,
    unfinished_record,
    without_settings,
)
from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.runs import (
    Group,
    Row,
    Run,
    find_runs,
    group_runs,
    number,
    read_settings,
    varying,
    whole_bytes,
    with_effect,
)

MOST_ROWS = 400  # rows of a history that a picture uses
COLOURED = 12  # groups that pictures draw in colour
NEARLY = 1.1  # below this compression ratio a run counts as uncompressed
# settings of a run that its result holds, and that a comparison needs in common
CONDITIONS = ("nodes", "rounds", "network", "partition")
OF_METHOD = re.compile(r"(algorithm|compression|downlink|strategy)([./@].*)?|rounds")
LESS = 1.2  # a group is compressed if its ratio is this many times the lowest ratio


@dataclass(frozen=True, eq=False)
class ReportGroup(Group):
    """The runs that differ in the seed only.

    `label`: its values of the keys that differ between groups. `histories`: for each seed the rows
    that pictures use. `settings`: the resolved configuration, flat: key -> text. `rank`: the place
    among the groups that pictures draw in colour, from 0; None for the other groups.
    """

    label: str
    values: Sequence[str]
    histories: Mapping[int, list[Row]]
    settings: Mapping[str, str]
    rank: int | None = None

    @property
    def key(self) -> str:
        """The number that stands for the group in pictures, from 1; "" for a group in grey."""
        return "" if self.rank is None else str(self.rank + 1)

    @property
    def first(self) -> dict[str, Any]:
        """The result of the first run."""
        return self.runs[0].result

    @property
    def asynchronous(self) -> bool:
        """Whether the server applies each update when it arrives."""
        return "staleness" in self.first

    @cached_property
    def task(self) -> tuple[Any, ...]:
        """What two groups must have in common so that their metrics can be compared."""
        return (*(self.first.get(key) for key in ("dataset", "model", "objective")), self.metric)

    @property
    def finished(self) -> bool:
        """Whether the runs are over; an unfinished run is in a group of such runs only."""
        return NOT_FINISHED not in self.overrides

    @property
    def whole(self) -> bool:
        """Whether all runs are over, and none has diverged or ended before its planned rounds."""
        return self.finished and not any(
            run.diverged or ended_early(run.result) for run in self.runs
        )

    def setting(self, key: str) -> str | None:
        """Return a setting of the runs as text, from their result or their overrides."""
        found = self.first.get(key, self.overrides.get(key))
        return None if found is None else one_line(str(found))

    @cached_property
    def value(self) -> float | None:
        """The mean of the main metric; None if no run was evaluated."""
        return self.mean(self.metric.name)

    def sent_mean(self, way: str) -> float:
        """Return the mean of all bytes that the runs sent in a direction."""
        return fmean(whole_bytes(run.result, way)[0] for run in self.runs)

    @cached_property
    def whole_ratio(self) -> float | None:
        """The `ratio` of both directions together."""
        return self.sent_ratio("uplink", "downlink")

    def sent_ratio(self, *ways: str) -> float | None:
        """Return Flower's bytes without compression, divided by the bytes sent; None if unknown."""
        found = [whole_bytes(run.result, way) for run in self.runs for way in ways]
        bottom, top = (sum(each) for each in zip(*found, strict=True))
        return top / bottom if top and bottom else None


@dataclass(frozen=True)
class ReportRuns:
    """All that a report shows. `keys`: the overrides that differ between the groups.

    `metric`: the main metric of most groups. `records`: all runs, also those without a result.
    """

    groups: Sequence[ReportGroup]
    keys: Sequence[str]
    metric: MainMetric
    records: Sequence[RunRecord]

    @property
    def coloured(self) -> list[ReportGroup]:
        """The groups that pictures draw in colour, by their number."""
        ranked = [(group.rank, group) for group in self.groups if group.rank is not None]
        return [group for _, group in sorted(ranked, key=lambda pair: pair[0])]

    @property
    def others(self) -> list[ReportGroup]:
        """The groups of the report's main metric that pictures draw in grey, best first."""
        left = [g for g in self.groups if g.rank is None and g.metric == self.metric]
        return best_first(left, self.metric)


OnHistory = Callable[[Run, str, list[Row]], None]


def load(folders: Iterable[Path], on_history: OnHistory | None = None) -> ReportRuns:
    """Read the runs below some folders.

    `on_history`: is called with each run that counts, its group's label and its whole history, of
    which only `MOST_ROWS` rows are kept. Raises `ResultsError` for a missing folder, and if there
    is no run at all.
    """
    tops = list(folders)
    runs, unfinished = find_runs(tops)
    if not runs and not unfinished:
        raise ResultsError(
            f"no run in {', '.join(map(str, tops))}: name the folder of a run or of a sweep, such "
            "as outputs/DATE/TIME or multirun/DATE/TIME"
        )
    found = group_runs([*runs, *(run for each in unfinished if (run := run_so_far(each)))])
    keys, labels = varying(found), labels_of(found)
    metrics = Counter(group.runs[0].metric for group in found)
    metric = metrics.most_common(1)[0][0] if metrics else ACCURACY
    groups, damaged = [], set()
    for group, label in zip(found, labels, strict=True):
        histories = {}
        for run in group.runs:
            try:
                rows = run.history()
            except (ResultsError, OSError):
                rows = []
                damaged.add(run.folder)
            if on_history is not None:
                on_history(run, label, rows)
            histories[run.seed] = thinned(rows, run.metric.name)
        values = [one_line(value) for value in group.name(keys)]
        shown = label, values, histories, settings_of(group)
        groups.append(ReportGroup(group.overrides, group.runs, *shown))
    groups = ranked(groups, metric)
    records = [
        *_finished(groups, runs, damaged),
        *map(unfinished_record, unfinished),
        *map(foreign_record, without_settings(tops)),
    ]
    return ReportRuns(groups, keys, metric, records)


def labels_of(groups: Sequence[Group]) -> list[str]:
    """Return a text for each group: the values of the overrides that differ, or the preset."""
    if len(groups) == 1:
        mark = " (not finished)" * (NOT_FINISHED in groups[0].overrides)
        return [one_line(str(groups[0].runs[0].result.get("algorithm") or "run")) + mark]
    key, found = legend(groups)
    # a value alone, such as 0.01, does not say what it is
    short = [(f"{key}={label}" if key else label).replace("@", " ") for label in found]
    return [one_line("the presets" if label == NOTHING else label) for label in short]


def ranked(groups: Sequence[ReportGroup], metric: MainMetric) -> list[ReportGroup]:
    """Number the groups that are drawn in colour: all, or of many the best."""
    able = [group for group in groups if group.metric == metric]
    chosen = able if len(able) <= COLOURED else best_first(able, metric)[:COLOURED]
    places = {id(group): place for place, group in enumerate(chosen)}
    return [replace(group, rank=places.get(id(group))) for group in groups]


def best_first(groups: Iterable[ReportGroup], metric: MainMetric) -> list[ReportGroup]:
    """Return groups by their main metric, the best first; groups without a value are last."""

    def place(group: ReportGroup) -> tuple[bool, float]:
        value = group.value
        return value is None, 0.0 if value is None else -value if metric.higher else value

    return sorted(groups, key=place)


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


def settings_of(group: Group) -> dict[str, str]:
    """Return the resolved configuration of a group's first run; its overrides without one."""
    for run in group.runs:
        if run.folder is not None and (found := read_settings(run.folder)):
            return with_effect(found)
    return {key: one_line(value) for key, value in group.overrides.items()}


def reference_of(group: ReportGroup, groups: Sequence[ReportGroup]) -> ReportGroup | None:
    """Return the group to compare a compressed group with; None if there is none.

    It is one of the least compressed groups of the same task whose runs have all finished, and none
    has diverged. Of several it differs in the fewest settings that do not belong to a method, such
    as nodes and rounds, and then in the fewest overrides. A group counts as compressed if its ratio
    is well above the lowest.
    """
    if (own := group.whole_ratio) is None or not group.finished:
        return None
    same = [g for g in groups if g.task == group.task and g.value is not None and g.whole]
    ratios = [(r, g) for g in same if (r := g.whole_ratio) is not None]
    lowest = min((ratio for ratio, _ in ratios), default=own)
    if own < LESS * lowest:
        return None
    least = [g for ratio, g in ratios if ratio < (LESS + 1) / 2 * lowest]
    return min(least, key=lambda g: (len(unlike(group, g)), _distance(group, g)), default=None)


def unlike(one: ReportGroup, other: ReportGroup) -> list[str]:
    """Return the keys of settings in which two groups differ beside their methods."""
    pairs = ((key, one.setting(key), other.setting(key)) for key in CONDITIONS)
    found = [key for key, ours, theirs in pairs if ours != theirs]
    if one.asynchronous != other.asynchronous:  # the one counts rounds, the other replies
        found = [key for key in found if key != "rounds"]
    ours, theirs = one.overrides, other.overrides
    found += [
        key
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key) and not OF_METHOD.fullmatch(key)
    ]
    return list(dict.fromkeys(found))


def _distance(one: ReportGroup, other: ReportGroup) -> int:
    return len(set(one.overrides.items()) ^ set(other.overrides.items()))


def is_uncompressed(group: ReportGroup) -> bool:
    """Return whether a group sent about as many bytes as Flower without compression."""
    return (group.whole_ratio or 0) < NEARLY


def _finished(
    groups: Sequence[ReportGroup], runs: Sequence[Run], damaged: set[Path | None]
) -> list[RunRecord]:
    label = {id(run): group.label for group in groups for run in group.runs}
    return [record_of(run, label.get(id(run)), run.folder in damaged) for run in runs]
