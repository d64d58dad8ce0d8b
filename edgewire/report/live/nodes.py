"""Reads `nodes.json`, in which a run writes what each node has done; names slow nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewire.report.files.reader import Notes, noting, read_json
from edgewire.report.html.text import one_line
from edgewire.report.live.node_state import is_slow, lag_of, not_answering, usual_lag
from edgewire.report.runs import number

NODES = "nodes.json"
SHOWN = 2000  # nodes, at most
LONGEST = 500  # characters of a reason
NUMBERS = (
    *("partition", "messages", "replies", "failures", "uplink_bytes", "downlink_bytes"),
    *("sent", "heard", "lag", "mean_lag", "samples", "train_loss", "staleness", "density"),
)
KNOWN = {"node", "online", "waiting", "reason", "labels", *NUMBERS}


class Nodes:
    """The content of a run's `nodes.json`, read again when the file has changed.

    `version`: a text that differs for each content; "" without a file. `left_out`: why the file
    cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.version = ""
        self.updated: float | None = None  # unix time
        self.content: dict[str, Any] | None = None
        self.left_out: Notes = {}

    def read(self) -> None:
        """Read the file if it has changed; a damaged file leaves the content as it was."""
        try:
            found = self._path.stat()
            if (version := f"{found.st_mtime_ns}.{found.st_size}.{found.st_ino}") == self.version:
                return
        except OSError:
            self.version, self.content, self.updated, self.left_out = "", None, None, {}
            return
        self.version = version
        try:
            with noting() as self.left_out:
                self.content = table(read_json(self._path))
        except (OSError, ValueError):
            return
        self.updated = found.st_mtime


def nodes_in(content: Any) -> list[dict[str, Any]]:
    """Return the nodes of `nodes.json`. Raises `ValueError` if it has no list of nodes."""
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise ValueError(f"{NODES} has no list of nodes")
    return [each for each in content["nodes"] if isinstance(each, dict)]


def table(content: Any) -> dict[str, Any]:
    """Return the nodes as columns, each a list, with the `state` and `metric` of each node.

    `metric`: the name of the values in the column `metric`, null if no node has one. Values of a
    wrong type become null. Raises `ValueError` if the content has no list of nodes.
    """
    nodes = nodes_in(content)[:SHOWN]
    seconds = number(content.get("seconds"))
    columns: dict[str, list[Any]] = {
        key: [number(node.get(key)) for node in nodes] for key in NUMBERS
    }
    metric = metric_of(nodes)
    columns["metric"] = [number(node.get(metric)) if metric else None for node in nodes]
    # A browser's numbers have 53 bits, and Flower's ids have 64.
    columns["node"] = [str(node.get("node", "?"))[:40] for node in nodes]
    columns["online"] = [node.get("online") is not False for node in nodes]
    reasons = (node.get("reason") for node in nodes)
    lines = (one_line(text, LONGEST) if isinstance(text, str) else "" for text in reasons)
    columns["reason"] = [line or None for line in lines]
    columns["labels"] = [_counts(node.get("labels")) for node in nodes]
    columns["state"] = states(nodes, seconds)
    others = number(content.get("others")) or 0
    others += max(len(content["nodes"]) - SHOWN, 0)
    return {
        "round": number(content.get("round")),
        "seconds": seconds,
        "others": others,
        "metric": metric,
        "columns": columns,
    }


def states(nodes: Sequence[Mapping[str, Any]], seconds: float | None) -> list[str]:
    """Return each node's state: offline, unanswered, slow, waiting or ready.

    `seconds`: the run's time. Unanswered: a reply is long overdue (`not_answering`). A node is slow
    if its mean lag, or the time since the message that it has not answered, is (`is_slow`).
    Waiting: the node has not answered a message.
    """
    lags = [lag_of(node) for node in nodes]
    usual = usual_lag(lag for lag in lags if lag is not None)
    lost = not_answering(nodes, seconds)
    return [
        "unanswered" if dead and node.get("online") is not False
        else _state(node, lag, seconds, usual)
        for node, lag, dead in zip(nodes, lags, lost, strict=True)
    ]  # fmt: skip


def _state(
    node: Mapping[str, Any], lag: float | None, seconds: float | None, usual: float | None
) -> str:
    if node.get("online") is False:
        return "offline"
    waiting, asked = node.get("waiting") is True, number(node.get("sent"))
    late = lag
    if waiting and seconds is not None and asked is not None:
        late = max(seconds - asked, lag or 0)
    if is_slow(late, usual):
        return "slow"
    return "waiting" if waiting else "ready"


def metric_of(nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name of the metric that nodes measure: the key that no other column has."""
    names = (key for node in nodes for key, value in node.items() if number(value) is not None)
    return next((str(name)[:40] for name in names if name not in KNOWN), None)


def _counts(value: Any) -> list[float] | None:
    if not isinstance(value, list) or len(value) > 1000:
        return None
    counts = [number(each) or 0 for each in value]
    return counts or None
