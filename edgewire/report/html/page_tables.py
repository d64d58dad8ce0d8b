"""The tables of a report, with a sort key for each cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from edgewire.report.columns import REMARKS, with_interval
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.html.findings import NO_SEED, NOISE, ONE_SEED, compare
from edgewire.report.html.node_table import NotableNode
from edgewire.report.html.run_data import ReportGroup, ReportRuns, sent_mean
from edgewire.report.html.run_records import RunRecord, ended_early
from edgewire.report.html.text import one_line
from edgewire.report.link_time import Link, seconds_over
from edgewire.report.runs import number
from edgewire.report.summary import whole_bytes

WAYS = ("uplink", "downlink")
TYPICAL = "lte"  # the link whose estimate is in the main table
MOST_CELLS = 12  # columns of settings; more groups are counted instead
Number = float | int | None


class Cell(NamedTuple):
    """A cell: its text, and the number or text by which its column is sorted, None for last.

    `kind`: a class of the style sheet; `rank`: the place of a group whose mark the cell shows.
    """

    text: str
    sort: float | str | None = None
    kind: str = ""
    rank: int | None = None


class Head(NamedTuple):
    """A column's head. `numeric`: its cells are numbers, at the right. `help`: its explanation."""

    text: str
    numeric: bool = True
    help: str = ""


class PageTable(NamedTuple):
    """A table of the page. `id`: its name in the page, and of its CSV file."""

    id: str
    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]


def quantity(value: Number, form: Callable[[float], str], kind: str = "") -> Cell:
    """Return the cell of a number; "-" for None."""
    return Cell(NOTHING) if value is None else Cell(form(value), float(value), kind)


def _text(text: str, kind: str = "", rank: int | None = None) -> Cell:
    return Cell(text, text.lower(), kind, rank)


def _count(value: float) -> str:
    return f"{value:,.10g}"


def _ratio(value: float) -> str:
    return f"{value:,.3g}×" if value < 1000 else f"{value:,.0f}×"


Maker = tuple[Head, Callable[[ReportGroup], Cell]]


def summary_table(report: ReportRuns, links: Sequence[Link]) -> PageTable:
    """Return the main table: a row for each group, its main metric, bytes, time and failures."""
    columns = [
        *_names(report),
        (Head("runs", help="runs that differ in the seed only"),
         lambda group: quantity(len(group.runs), _count)),
        *_metrics(report),
        *_bytes_columns(),
        *_times(report, links),
        (Head("failures", help="failed or refused replies, mean of the runs"), _failures),
        (Head(REMARKS, numeric=False), _remarks),
    ]  # fmt: skip
    return _table("summary", "Groups of runs that differ in the seed only", report.groups, columns)


def _table(id_: str, title: str, groups: Iterable[ReportGroup],
           columns: Sequence[Maker]) -> PageTable:  # fmt: skip
    """Return a table without the columns that are empty in all rows."""
    rows = [[make(group) for _, make in columns] for group in groups]
    used = [
        at
        for at, (head, _) in enumerate(columns)
        if (not head.numeric and head.text != REMARKS)
        or any(row[at].text not in (NOTHING, "") for row in rows)
    ]
    return PageTable(
        id_, title, [columns[at][0] for at in used], [[row[at] for at in used] for row in rows]
    )


def _names(report: ReportRuns) -> list[Maker]:
    def first(group: ReportGroup) -> Cell:
        return _text(group.values[0] if report.keys else group.label, "name", group.rank)

    def other(at: int) -> Callable[[ReportGroup], Cell]:
        return lambda group: _setting(group.values[at])

    names = [one_line(key, 60) for key in report.keys] or ["run"]
    return [
        (Head(names[0], numeric=False), first),
        *((Head(name, numeric=False), other(at)) for at, name in enumerate(names[1:], 1)),
    ]


def _setting(text: str) -> Cell:
    try:
        return Cell(text, float(text))
    except ValueError:
        return _text(text)


def _metrics(report: ReportRuns) -> list[Maker]:
    metrics = dict.fromkeys(group.metric for group in report.groups)
    columns: list[Maker] = []
    for metric in metrics:
        better = "higher" if metric.higher else "lower"

        def value(group: ReportGroup, metric: object = metric) -> Cell:
            return _metric_cell(group) if group.metric == metric else Cell(NOTHING)

        name = metric.heads["metric_unit"]
        columns.append((Head(name, help=f"mean ± 95 % interval; {better} is better"), value))
    unit = report.metric.heads["points"]
    head = Head(
        f"difference{unit}", help="from the least compressed runs, mean over the seeds of both"
    )
    columns.append((head, lambda group: _difference(group, report)))
    return columns


def _metric_cell(group: ReportGroup) -> Cell:
    metric = group.metric
    found = group.estimate(metric.name, metric.scale)
    if found is None:
        return Cell(NOTHING)
    text = with_interval(found, metric.places(found.mean))
    missing = f" ({found.count} of {len(group.runs)} runs)" * (found.count < len(group.runs))
    return Cell(text + missing, found.mean, "main")


def _difference(group: ReportGroup, report: ReportRuns) -> Cell:
    found = compare(group, report.groups)
    if found is None:
        return Cell(NOTHING)
    if found.difference is None:
        return Cell(NO_SEED)
    remark = {NOISE: ", noise", ONE_SEED: ", one seed"}.get(found.verdict, f", {found.verdict}")
    return Cell(found.number + remark, found.difference.mean, found.verdict.replace(" ", "-"))


def _bytes_columns() -> list[Maker]:
    columns: list[Maker] = []
    for way, word in (("uplink", "up"), ("downlink", "down")):

        def size(group: ReportGroup, way: str = way) -> Cell:
            return quantity(sent_mean(group, way), human_bytes)

        def ratio(group: ReportGroup, way: str = way) -> Cell:
            return quantity(group.ratio(way), _ratio)

        said = "bytes of Flower without compression, divided by the bytes sent"
        columns += [
            (Head(f"bytes {word}", help="all bytes of a run, mean of the runs"), size),
            (Head(f"ratio {word}", help=said), ratio),
        ]
    return columns


def _times(report: ReportRuns, links: Sequence[Link]) -> list[Maker]:
    columns: list[Maker] = []
    found = dict.fromkeys(
        speeds for group in report.groups if (speeds := recorded_link(group)) is not None
    )
    for speeds in found:

        def recorded(group: ReportGroup, speeds: object = speeds) -> Cell:
            mean = group.estimate("link_seconds") if recorded_link(group) == speeds else None
            return quantity(None if mean is None else mean.mean, human_seconds)

        down, up = ("∞" if rate is None else f"{rate:g}" for rate in speeds)
        said = f"virtual time at {down} Mbit/s down, {up} up, as the run recorded it"
        columns.append((Head(f"time, {down}/{up} Mbit/s", help=said), recorded))
    typical = [link for link in links if link.name == TYPICAL]
    return [*columns, *_estimates(typical, f"time, {TYPICAL} (estimate)")]


def _estimates(links: Sequence[Link], name: str = "") -> list[Maker]:
    """Return a column of estimated times for each link. `name`: its head; "": the link's name."""
    return [(Head(name or each.name, help=each.speeds), partial(estimated, each)) for each in links]


def recorded_link(group: ReportGroup) -> tuple[float | None, float | None] | None:
    """Return the rates for which the runs recorded a time, down and up; None if they did not."""
    if number(group.first.get("link_seconds")) is None:
        return None
    return number(group.first.get("link_down_mbps")), number(group.first.get("link_up_mbps"))


def estimated(link: Link, group: ReportGroup) -> Cell:
    """Return the cell of the estimated time over a link, the mean over runs that sent bytes.

    A diverged run ended too early, so its time says nothing.
    """
    known = {
        run.seed
        for run in group.runs
        if not run.diverged and sum(whole_bytes(run.result, way)[0] for way in WAYS) > 0
    }
    found = [
        seconds_over(link, rows, group.first, group.settings)
        for seed, rows in group.histories.items()
        if seed in known
    ]
    ends = [times[-1] for times in found if times]
    whole = [end for end in ends if end is not None]
    return quantity(sum(whole) / len(whole) if whole else None, human_seconds)


def time_table(report: ReportRuns, links: Sequence[Link]) -> PageTable | None:
    """Return the estimated times of the groups over each link; None if no time can be estimated."""
    columns: list[Maker] = [(Head("group", numeric=False), _label), *_estimates(links)]
    table = _table("times", "Estimated time of a run over links", report.groups, columns)
    return table if len(table.heads) > 1 else None


def _label(group: ReportGroup) -> Cell:
    return _text(group.label, "name", group.rank)


def _failures(group: ReportGroup) -> Cell:
    found = group.estimate("failures")
    return quantity(None if found is None else found.mean, _count)


def _remarks(group: ReportGroup) -> Cell:
    runs = len(group.runs)
    diverged = sum(run.diverged for run in group.runs)
    short = sum(ended_early(run.result) and not run.diverged for run in group.runs)
    parts = [f"{diverged} of {runs} runs diverged"] if diverged else []
    if not group.finished:
        parts.append("not finished")
    elif short:
        parts.append(f"{short} of {runs} runs ended early")
    return Cell(", ".join(parts), float(diverged), "bad" if parts else "")


def settings_table(report: ReportRuns) -> PageTable | None:
    """Return the keys of the configuration whose values differ; None if none does.

    Few groups have a column each. Of more groups the table counts who has which value.
    """
    keys = dict.fromkeys(key for group in report.groups for key in group.settings)
    differing = [k for k in keys if len({g.settings.get(k) for g in report.groups}) > 1]
    if not differing:
        return None
    title = "Configuration keys whose values differ"
    if len(report.groups) <= MOST_CELLS:
        heads = [Head("key", False), *(Head(g.label, False) for g in report.groups)]
        rows = [
            [_text(key, "name"), *(_setting(g.settings.get(key, NOTHING)) for g in report.groups)]
            for key in differing
        ]
        return PageTable("settings", title, heads, rows)
    heads = [Head("key", False), Head("values", True), Head("value (groups)", False)]
    rows = []
    for key in differing:
        counts = Counter(group.settings.get(key, NOTHING) for group in report.groups)
        most = ", ".join(f"{value} ({count})" for value, count in counts.most_common(8))
        more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
        rows.append([_text(key, "name"), quantity(len(counts), _count), _text(most + more)])
    return PageTable("settings", title, heads, rows)


def nodes_table(nodes: Sequence[NotableNode]) -> PageTable | None:
    """Return the table of the nodes that are slow, silent or failed; None without such nodes."""
    if not nodes:
        return None
    heads = [
        Head("node", help="its place in the list of nodes"), Head("group", False), Head("seed"),
        Head("state", False), Head("mean lag", help="seconds from a message to its reply"),
        Head("× usual", help="the lag, divided by that of the run's fastest quarter of nodes"),
        Head("replies"), Head("messages"), Head("failures"),
        Head("bytes up"), Head("bytes down"), Head("last failure", False),
    ]  # fmt: skip
    rows = []
    for each in nodes:
        node = each.record
        rows.append([
            Cell(str(node.place), node.place), _label(node.group),
            quantity(node.seed, "{:.0f}".format), _node_state(each),
            quantity(node.lag, human_seconds, "bad" if each.slow else ""),
            quantity(each.times, _ratio),
            quantity(node.replies, _count), quantity(node.messages, _count),
            quantity(node.failures, _count, "bad" if node.failures else ""),
            quantity(node.uplink_bytes, human_bytes), quantity(node.downlink_bytes, human_bytes),
            _text(node.reason),
        ])  # fmt: skip
    return PageTable("nodes", "Nodes that are slow, do not answer, or have failed", heads, rows)


def _node_state(node: NotableNode) -> Cell:
    if node.record.unanswered:
        return _text("does not answer", "bad")
    return _text("slow" if node.slow else "answers")


def runs_table(records: Sequence[RunRecord]) -> PageTable:
    """Return the table of all runs, with the command that resumes or repeats each."""
    heads = [
        Head("run", False), Head("group", False), Head("seed"), Head("outcome", False),
        Head("metric"), Head("round"), Head("bytes up"), Head("bytes down"), Head("failures"),
        Head("real time"), Head("to repeat or resume it", False),
    ]  # fmt: skip
    rows = [
        [
            _text(str(record.folder), "name"),
            _text(record.group),
            _setting(record.seed),
            _text(record.outcome, "" if record.fine else "bad"),
            _setting_of(record.value),
            quantity(record.rounds, _count),
            quantity(record.bytes_up, human_bytes),
            quantity(record.bytes_down, human_bytes),
            quantity(record.failures, _count),
            quantity(record.seconds, human_seconds),
            _text(record.command, "command"),
        ]
        for record in records
    ]
    return PageTable("runs", "All runs", heads, rows)


def _setting_of(text: str) -> Cell:
    try:
        return Cell(text, float(text.removesuffix(" %")))
    except ValueError:
        return Cell(text)
