"""Tells which nodes of a run are slow, and which do not answer any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgewire.report.runs import number

SLOW = 2.0  # a node is slow if its lag is above so many times the usual lag
NODES = "nodes.json"  # in it a run writes what each node has done
ENOUGH = 2  # nodes whose lag is known, without which no node is slow
OVERDUE = 3.0  # a reply does not come any more after so many times the longest mean lag


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
