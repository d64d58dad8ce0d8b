"""Reads what runs say of their nodes, and which are slow or silent: `nodes.json` of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewire.report.format import one_line
from edgewire.report.reader import read_json, readable
from edgewire.report.runs import Run, ended_early, number
from edgewire.task.metric import Metric

RUNS = 3  # runs of a group whose nodes are shown
SLOW = 2.0  # a node is slow if its lag is above so many times the usual lag
NODES = "nodes.json"  # in it a run writes what each node has done
ENOUGH = 2  # nodes whose lag is known, without which no node is slow
POINTS, PART = 0.1, 0.5  # a weak node is so far from the mean: a share, a part of the mean
LONGEST = 40  # characters of a node's name
OVERDUE = 3.0  # a reply does not come any more after so many times the longest mean lag


@dataclass(frozen=True)
class NodeRecord:
    """A node in a run. `told`: its entry in `nodes.json`.

    `number`: from 1 on. `group`: the group of its run in a report, a `ReportGroup`; else None.
    `lag`: the mean seconds from a message to its reply. `times`: its lag, divided by the usual lag
    of its run (`usual_lag`). `unanswered`: it has left its last message unanswered.
    """

    number: int
    group: Any
    seed: int
    told: Mapping[str, Any]
    lag: float | None
    times: float | None
    unanswered: bool

    @property
    def label(self) -> str:
        """What texts call the node: its number, and its name if it has one."""
        name = self.told.get("name")
        return f"node {self.number}" + (f" ({one_line(str(name), LONGEST)})" if name else "")

    @property
    def slow(self) -> bool:
        """Whether its lag is well above the usual one."""
        return self.times is not None and self.times > SLOW

    def count(self, key: str) -> float | None:
        """Return a number of the node; None if the run did not record it."""
        return number(self.told.get(key))

    @property
    def waits(self) -> bool:
        """Whether the run ended while the node worked, and it has answered all other messages."""
        sent, replies = self.count("messages"), self.count("replies")
        return self.told.get("waiting") is True and sent is not None and replies == sent - 1

    @property
    def reason(self) -> str:
        """Why its last failed reply could not be used; "" without one."""
        return one_line(str(self.told.get("reason") or ""))

    @property
    def failures(self) -> float:
        """How many of its replies failed or were refused."""
        return self.count("failures") or 0.0


def read_nodes(groups: Iterable[Any]) -> list[NodeRecord]:
    """Return the nodes of the first runs of each `ReportGroup`, as far as they are recorded."""
    return [node for group in groups for run in group.runs[:RUNS] for node in nodes_of(run, group)]


def nodes_of(run: Run, group: Any = None) -> list[NodeRecord]:
    """Return the nodes of a run by their numbers; none if their file is missing or damaged."""
    assert run.folder is not None
    content = readable(read_json, run.folder / NODES)
    content = content if isinstance(content, dict) else {}
    listed = content.get("nodes")
    nodes = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    gave_up = ended_early(run.result) and not run.diverged  # because no node answered
    lost = not_answering(nodes, number(content.get("seconds")), gave_up)
    lags = [number(each.get("mean_lag")) for each in nodes]
    usual = usual_lag(lag for lag in lags if lag is not None)
    records = []
    for at, (each, lag, unanswered) in enumerate(zip(nodes, lags, lost, strict=True), 1):
        told = number(each.get("number"))
        shown = at if told is None else int(told)
        times = lag / usual if lag is not None and usual else None
        records.append(NodeRecord(shown, group, run.seed, each, lag, times, unanswered))
    return sorted(records, key=lambda record: record.number)


def weak_node(
    nodes: Iterable[NodeRecord], metric: Metric
) -> tuple[NodeRecord, float, float] | None:
    """Return the node whose own samples fit the model worst, its value, and the mean of all nodes.

    None if no node is well below the mean, or if too few nodes have measured the metric.
    """
    known = [(node, v) for node in nodes if (v := node.count(metric.name)) is not None]
    if len(known) < ENOUGH:
        return None
    mean = sum(value for _, value in known) / len(known)
    node, value = (min if metric.higher else max)(known, key=lambda pair: pair[1])
    far = POINTS if metric.share else PART * abs(mean)
    return (node, value, mean) if abs(value - mean) > far else None


def notable(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Return the nodes that do not answer, the slow ones, the slowest first, those that failed."""
    lost = [node for node in nodes if node.unanswered]
    slow = sorted((node for node in nodes if node.slow), key=lambda node: -(node.times or 0))
    failed = sorted((node for node in nodes if node.failures), key=lambda node: -node.failures)
    return list({id(node): node for node in (*lost, *slow, *failed)}.values())


def usual_lag(lags: Iterable[float]) -> float | None:
    """Return the lag of which a slow node has `SLOW` times as much; None if too few are known.

    A quarter of the nodes has this lag or a shorter one. It is no median, because most of the nodes
    may be slow.
    """
    known = sorted(lags)
    return known[(len(known) - 1) // 4] if len(known) >= ENOUGH else None


def not_answering(
    nodes: Sequence[Mapping[str, Any]], seconds: float | None, gave_up: bool = False
) -> list[bool]:
    """Return for each node of `nodes.json` whether it has left its last message unanswered.

    `seconds`: the run's time. A node of an asynchronous run always has an open message, so it
    counts only if the message is much older than a reply takes. With `gave_up` each open message
    counts: the run has ended before its planned rounds, because no node was left.
    """
    lags = [lag for node in nodes if (lag := number(node.get("mean_lag"))) is not None]
    overdue = OVERDUE * max(lags) if lags else math.inf

    def unanswered(node: Mapping[str, Any]) -> bool:
        sent, heard = number(node.get("sent")), number(node.get("heard"))
        if node.get("waiting") is not True:
            # a synchronous round is over when its open messages count as lost
            return sent is not None and (heard is None or heard < sent)
        if heard is not None and sent is not None and heard > sent:
            return False  # an earlier message is open
        if gave_up or sent is None or seconds is None:
            return gave_up
        return seconds - sent > overdue

    return [unanswered(node) for node in nodes]
