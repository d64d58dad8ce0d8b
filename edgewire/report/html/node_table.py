"""Reads what runs say of their nodes, and which are slow or silent: `nodes.json` of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewire.report.files.reader import read_json
from edgewire.report.format import one_line
from edgewire.report.html.run_data import ReportGroup
from edgewire.report.html.run_records import ended_early
from edgewire.report.runs import number

RUNS = 3  # runs of a group whose nodes are shown
NOTABLE = 12  # nodes of each kind in the table
SLOW = 2.0  # a node is slow if its lag is above so many times the usual lag
NODES = "nodes.json"  # in it a run writes what each node has done
ENOUGH = 2  # nodes whose lag is known, without which no node is slow
OVERDUE = 3.0  # a reply does not come any more after so many times the longest mean lag


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


def nodes_in(content: Any) -> list[dict[str, Any]]:
    """Return the nodes of `nodes.json`. Raises `ValueError` if it has no list of nodes."""
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise ValueError(f"{NODES} has no list of nodes")
    return [each for each in content["nodes"] if isinstance(each, dict)]


def usual_lag(lags: Iterable[float]) -> float | None:
    """Return the lag of which a slow node has `SLOW` times as much; None if too few are known.

    A quarter of the nodes has this lag or a shorter one. It is no median, because most of the nodes
    may be slow.
    """
    known = sorted(lags)
    return known[(len(known) - 1) // 4] if len(known) >= ENOUGH else None


def is_slow(lag: float | None, usual: float | None) -> bool:
    """Return whether a lag is slow. `usual`: the result of `usual_lag`."""
    return lag is not None and usual is not None and lag > SLOW * usual


def lag_of(node: Mapping[str, Any]) -> float | None:
    """Return a node's mean lag in seconds, else that of its last message; None if it has none."""
    mean = number(node.get("mean_lag"))
    return number(node.get("lag")) if mean is None else mean


def not_answering(
    nodes: Sequence[Mapping[str, Any]], seconds: float | None, gave_up: bool = False
) -> list[bool]:
    """Return for each node of `nodes.json` whether it has left its last message unanswered.

    `seconds`: the run's time. A node of an asynchronous run always has an open message, so it
    counts only if the message is much older than a reply takes. With `gave_up` each open message
    counts: the run has ended before its planned rounds, because no node was left.
    """
    lags = [lag for node in nodes if (lag := lag_of(node)) is not None]
    return [_unanswered(node, seconds, max(lags, default=None), gave_up) for node in nodes]


def _unanswered(
    node: Mapping[str, Any], seconds: float | None, longest: float | None, gave_up: bool
) -> bool:
    sent, heard = number(node.get("sent")), number(node.get("heard"))
    if node.get("waiting") is not True:
        # a synchronous round is over when its open messages count as lost
        return sent is not None and (heard is None or heard < sent)
    if heard is not None and sent is not None and heard > sent:
        return False  # an earlier message is open
    if gave_up:
        return True
    if sent is None or seconds is None or longest is None:
        return False
    return seconds - sent > OVERDUE * longest
