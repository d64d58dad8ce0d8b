"""The tables of a report, with a sort key for each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from statistics import fmean
from typing import Any

from edgewire.conf.network import Network
from edgewire.report.format import NOTHING, human_bytes, human_seconds, one_line
from edgewire.report.html.findings import NO_SEED, compare
from edgewire.report.html.run_data import WAYS, ReportGroup, ReportRuns, RunRecord
from edgewire.report.link_time import seconds_over, speeds
from edgewire.report.node_table import NodeRecord, notable
from edgewire.report.runs import ended_early, sent_bytes, whole_bytes
from edgewire.report.summary import confusion_of
from edgewire.report.table import COLUMNS, Cell, Column, Table, mean, number, quantity, words
from edgewire.task.metric import Metric

MOST_CLASSES = 20  # of a confusion matrix
MOST_NODES = 500  # rows of the table of nodes


def tables_of(
    report: ReportRuns, nodes: Sequence[NodeRecord], links: Mapping[str, Network]
) -> dict[str, Table]:
    """Return the tables of a page by its sections, without those that have no rows."""
    found: dict[str, Table | None] = {"runs": runs_table(report.records)}
    if report.groups:
        found |= {
            "summary": summary_table(report),
            "metric": confusion_table(report.single.result) if report.single else None,
            "time": time_table(report, links),
            "nodes": nodes_table(nodes, report.metric),
            "settings": settings_table(report.coloured),
        }
    return {section: table for section, table in found.items() if table is not None}


def _count(value: float) -> str:
    return f"{value:,.10g}"


def _ratio(value: float) -> str:
    return f"{value:,.3g}×" if value < 1000 else f"{value:,.0f}×"


def summary_table(report: ReportRuns, *, brief: bool = False) -> Table:
    """Return the main table: a row for each group, its main metric, bytes and failures.

    `brief`: as a terminal shows it: only the groups in colour, and fewer columns.
    """
    columns = [
        *_names(report),
        COLUMNS["runs"],
        *_metrics(report),
        *(COLUMNS[head] for head in ("sent up", "ratio up", "sent down", "ratio down", "failed")),
        Column("remarks", _remarks, numeric=False),
    ]  # fmt: skip
    if brief:
        columns = [each for each in columns if not each.head.startswith(("runs", "ratio"))]
    title = "Groups of runs that differ in the seed only"
    rows = report.coloured if brief else report.groups
    return Table.of(columns, rows, "summary", title).used()


def _label(group: ReportGroup) -> Cell:
    return words(group.label, "name", group.rank)


def _names(report: ReportRuns) -> list[Column]:
    def name(key: str, group: ReportGroup) -> Cell:
        first = key == report.keys[0]
        text = one_line(group.overrides.get(key, NOTHING))
        return words(text, "name" * first, group.rank if first else None)

    keys = [Column(one_line(key, 60), partial(name, key), numeric=False) for key in report.keys]
    return keys or [Column("run", _label, numeric=False)]


def _metric(metric: Metric) -> Column:
    def value(group: ReportGroup) -> Cell:
        found = group.estimate(metric.name, metric.scale) if group.metric == metric else None
        if found is None:
            return Cell(NOTHING)
        missing = f" ({found.count} of {len(group.runs)} runs)" * (found.count < len(group.runs))
        return Cell(found.text(metric.places(found.mean)) + missing, found.mean, "main")

    said = f"mean ± 95 % interval; {'higher' if metric.higher else 'lower'} is better"
    return Column(metric.heads["metric_unit"], value, help=said)


def _metrics(report: ReportRuns) -> list[Column]:
    difference = Column(
        f"difference{report.metric.heads['points']}",
        partial(_difference, report),
        help="from the least compressed runs, mean over the seeds of both",
    )
    return [*map(_metric, dict.fromkeys(group.metric for group in report.groups)), difference]


def _difference(report: ReportRuns, group: ReportGroup) -> Cell:
    found = compare(group, report.groups)
    if found is None:
        return Cell(NOTHING)
    if found.difference is None:
        return Cell(NO_SEED)
    kind = found.verdict.replace(" ", "-")
    return Cell(f"{found.number}, {found.verdict}", found.difference.mean, kind)


def estimated(link: Network, group: ReportGroup) -> float | None:
    """Return the estimated seconds over a link, the mean over runs that sent bytes; or None.

    A diverged run ended too early, so its time says nothing.
    """
    histories = [
        group.histories[run.seed] for run in group.runs
        if not run.diverged and any(whole_bytes(run.result, way)[0] > 0 for way in WAYS)
    ]  # fmt: skip
    times = (seconds_over(link, rows, group.first, group.settings) for rows in histories)
    whole = [each[-1] for each in times if each and each[-1] is not None]
    return fmean(whole) if whole else None


def time_table(report: ReportRuns, links: Mapping[str, Network]) -> Table | None:
    """Return the times of the groups over each link; None if no time is known."""
    own = mean("link_seconds", human_seconds)
    columns = [
        Column("group", _label, numeric=False),
        Column("own link", own, help="virtual time on the run's own network, as recorded"),
    ]
    for name, link in links.items():
        show = number(partial(estimated, link), human_seconds)
        columns.append(Column(name, show, help=speeds(link)))
    title = "Time of a run over its own link, and estimates for others"
    table = Table.of(columns, report.groups, "times", title).used()
    return table if len(table.columns) > 1 else None


def confusion_table(result: Mapping[str, Any]) -> Table | None:
    """Return the table of a run's confusion matrix; None without one, and for many classes."""
    names, table = confusion_of(result)
    if not 1 < len(names) <= MOST_CLASSES:
        return None
    columns = [Column("class", lambda row: words(row[0], "name"), numeric=False)]
    columns += [Column(name, number(itemgetter(at), _count)) for at, name in enumerate(names, 1)]
    rows = [(name, *row) for name, row in zip(names, table, strict=True)]
    title = "Test samples of each class, and what the model takes them for"
    return Table.of(columns, rows, "confusion", title)


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


def settings_table(groups: Sequence[ReportGroup]) -> Table | None:
    """Return the keys of the configuration whose values differ, or of one group all keys.

    None if there are no such keys.
    """

    def value(group: ReportGroup, key: str) -> Cell:
        return words(group.settings.get(key, NOTHING))

    keys = dict.fromkeys(key for group in groups for key in group.settings)
    one = len(groups) == 1
    differing = [key for key in keys if one or len({g.settings.get(key) for g in groups}) > 1]
    if not differing:
        return None
    columns = [Column("key", lambda key: words(key, "name"), numeric=False)]
    columns += [Column(g.label, partial(value, g), numeric=False) for g in groups]
    title = "The configuration" if one else "Configuration keys whose values differ"
    return Table.of(columns, differing, "settings", title)


def _counted(key: str, form: Callable[[float], str] = _count) -> Callable[[Any], Cell]:
    """Return the function that shows a number of a run's or a node's record."""
    return number(methodcaller("count", key), form)


def nodes_table(nodes: Sequence[NodeRecord], metric: Metric) -> Table | None:
    """Return the table of at most `MOST_NODES` nodes; None without nodes.

    The nodes that are slow, silent or failed come first. `metric`: of their own samples.
    """
    shown = list({id(node): node for node in [*notable(nodes), *nodes]}.values())[:MOST_NODES]

    def state(node: NodeRecord) -> Cell:
        if node.unanswered:
            return words("does not answer", "bad")
        return words("slow" if node.slow else "answers")

    columns = [
        Column("node", lambda node: Cell(node.label.removeprefix("node "), node.number),
               help="its number in the run, and its name if it has one"),
        Column("group", lambda node: _label(node.group), numeric=False),
        Column("seed", lambda node: quantity(node.seed, "{:.0f}".format)),
        Column("state", state, numeric=False),
        Column("mean lag", lambda node: quantity(node.lag, human_seconds, "bad" * node.slow),
               help="seconds from a message to its reply"),
        Column("× usual", lambda node: quantity(node.times, _ratio),
               help="the lag, divided by that of the run's fastest quarter of nodes"),
        Column("replies", _counted("replies")),
        Column("messages", _counted("messages")),
        Column("failures",
               lambda node: quantity(node.failures, _count, "bad" * (node.failures > 0))),
        Column("samples", _counted("samples")),
        Column(metric.name, _counted(metric.name, metric.text), help="of the node's own samples"),
        Column("bytes up", _counted("uplink_bytes", human_bytes)),
        Column("bytes down", _counted("downlink_bytes", human_bytes)),
        Column("last failure", lambda node: words(node.reason), numeric=False),
    ]  # fmt: skip
    title = "Nodes that are slow, do not answer, or have failed, then the others"
    return Table.of(columns, shown, "nodes", title).used() if shown else None


def runs_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of all runs, with the command that resumes or repeats each."""

    columns = [
        Column("run", lambda record: words(str(record.folder), "name"), numeric=False),
        Column("group", lambda record: words(record.group), numeric=False),
        Column("seed", lambda record: words(record.seed)),
        Column("outcome", lambda record: words(record.outcome, "" if record.fine else "bad"),
               numeric=False),
        Column("metric", lambda record: record.value or Cell(NOTHING)),
        Column("round", _counted("round")),
        Column("bytes up", lambda each: quantity(sent_bytes(each.row, "uplink"), human_bytes)),
        Column("bytes down", lambda each: quantity(sent_bytes(each.row, "downlink"), human_bytes)),
        Column("failures", _counted("failures")),
        Column("real time", _counted("seconds", human_seconds)),
        Column("to repeat or resume it", lambda record: words(record.command, "command"), False),
    ]  # fmt: skip
    return Table.of(columns, records, "runs", "All runs")
