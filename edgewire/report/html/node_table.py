"""Reads what runs say of their nodes: `nodes.json` in the folder of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewire.report.files.reader import read_json
from edgewire.report.format import one_line
from edgewire.report.html.node_state import (
    NODES,
    is_slow,
    lag_of,
    nodes_in,
    not_answering,
    usual_lag,
)
from edgewire.report.html.run_data import ReportGroup
from edgewire.report.html.run_records import ended_early
from edgewire.report.runs import number

RUNS = 3  # runs of a group whose nodes are shown
NOTABLE = 12  # nodes of each kind in the table


@dataclass(frozen=True)
class NodeRecord:
    """A node in a run; None for what the run did not record.

    `lag`: the mean seconds from a message to its reply, else those of the last message. `labels`:
    the node's samples of each class. `unanswered`: it has left its last message unanswered.
    """

    place: int
    group: ReportGroup
    seed: int
    messages: float | None
    replies: float | None
    failures: float
    reason: str
    uplink_bytes: float | None
    downlink_bytes: float | None
    lag: float | None
    train_loss: float | None
    accuracy: float | None
    labels: tuple[float, ...]
    unanswered: bool


@dataclass(frozen=True)
class NotableNode:
    """A node that is slow, does not answer, or has failed.

    `times`: its lag, divided by the usual lag of its run (`usual_lag`).
    """

    record: NodeRecord
    times: float | None
    slow: bool


def read_nodes(groups: Iterable[ReportGroup]) -> list[NodeRecord]:
    """Return the nodes of the first runs of each group, as far as the runs have recorded them."""
    found: list[NodeRecord] = []
    for group in groups:
        for run in group.runs[:RUNS]:
            if run.folder is not None:
                gave_up = ended_early(run.result) and not run.diverged
                found += nodes_of(run.folder / NODES, group, run.seed, gave_up)
    return found


def nodes_of(file: Path, group: ReportGroup, seed: int, gave_up: bool = False) -> list[NodeRecord]:
    """Return the nodes in a file, by their place; an empty list for a missing or damaged file.

    `gave_up`: whether the run ended before its planned rounds because no node answered.
    """
    try:
        content = read_json(file)
        listed = nodes_in(content)
    except (OSError, ValueError):
        return []
    lost = not_answering(listed, number(content.get("seconds")), gave_up)
    known = enumerate(zip(listed, lost, strict=True))
    records = [_record(each, at, group, seed, dead) for at, (each, dead) in known]
    return sorted(records, key=lambda record: record.place)


def _record(
    each: Mapping[str, Any], at: int, group: ReportGroup, seed: int, unanswered: bool
) -> NodeRecord:
    place, reason, labels = number(each.get("partition")), each.get("reason"), each.get("labels")
    main = number(each.get(group.metric.name))
    known = ("messages", "replies", "uplink_bytes", "downlink_bytes", "train_loss")
    return NodeRecord(
        place=at if place is None else int(place),
        group=group,
        seed=seed,
        failures=number(each.get("failures")) or 0.0,
        reason=one_line(reason) if isinstance(reason, str) else "",
        lag=lag_of(each),
        accuracy=number(each.get("accuracy")) if main is None else main,
        labels=tuple(number(n) or 0.0 for n in labels) if isinstance(labels, list) else (),
        unanswered=unanswered,
        **{key: number(each.get(key)) for key in known},
    )


def by_run(records: Sequence[NodeRecord]) -> list[list[NodeRecord]]:
    """Return the nodes of each run."""
    runs: dict[tuple[int, int], list[NodeRecord]] = {}
    for record in records:
        runs.setdefault((id(record.group), record.seed), []).append(record)
    return list(runs.values())


def notable(records: Sequence[NodeRecord]) -> list[NotableNode]:
    """Return the nodes that do not answer, the slow nodes, the slowest first, those with failures.

    Of each kind there are at most `NOTABLE`; a node is in the first kind that it fits.
    """
    found: list[NotableNode] = []
    for nodes in by_run(records):
        usual = usual_lag(node.lag for node in nodes if node.lag is not None)
        for node in nodes:
            times = node.lag / usual if node.lag is not None and usual else None
            found.append(NotableNode(node, times, is_slow(node.lag, usual)))
    lost = [n for n in found if n.record.unanswered]
    slow = sorted(
        (n for n in found if n.slow and not n.record.unanswered), key=lambda n: -(n.times or 0)
    )
    failed = sorted(
        (n for n in found if n.record.failures and not n.slow and not n.record.unanswered),
        key=lambda n: -n.record.failures,
    )
    return [*lost[:NOTABLE], *slow[:NOTABLE], *failed[:NOTABLE]]
