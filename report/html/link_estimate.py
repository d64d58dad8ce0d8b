"""Estimates how long a run takes over a link, from the bytes in its history.

A round over a link takes the time of its messages (`report.link_time.exchange_seconds`) and of the
devices' work. The work is the virtual time of the round without the messages over the run's own
link; 0 without a virtual clock. An asynchronous server has a message under way to each node. So in
the time of one exchange it gets a reply from each node.

The virtual clock (simulation/clock.py) follows every message. The estimate takes the mean over a
round's nodes, and knows nothing of lost messages, and of devices of several speeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report.html.counters import Row, number, sent_bytes
from report.html.run_data import ReportGroup
from report.link_time import exchange_seconds
from simulation.network import Network

NETWORKS = Path(__file__).parents[2] / "conf" / "network"
WAYS = ("downlink", "uplink")
FORMULA = (
    "time of a round = 2 × latency + bytes down ÷ rate down + bytes up ÷ rate up + work",
    "bytes: those of one node that takes part in the round, whole messages",
    "shared server link: at least the bytes of all the round's nodes ÷ the server's rate",
    "work: the round's virtual time without its messages; 0 if no virtual clock was recorded",
    "asynchronous run: one exchange, divided by the number of nodes, for each reply",
)


@dataclass(frozen=True)
class Link:
    """A link of each node: its name, and the network with its rates and its latency."""

    name: str
    network: Network

    @property
    def speeds(self) -> str:
        """The rates and the latency as text."""
        network = self.network
        rates = ", ".join(
            f"{rate:g} Mbit/s {way}"
            for way, rate in (("up", network.up_mbps), ("down", network.down_mbps))
            if rate is not None
        )
        shared = ", shared by all nodes" if network.server_mbps is not None else ""
        return f"{rates}{shared}, latency {network.latency_ms:g} ms"

    def seconds(self, down: float, up: float, nodes: float) -> float:
        """Return the seconds that one exchange takes on the link (`exchange_seconds`)."""
        return exchange_seconds(self.network, down, up, nodes)


def named_links(folder: Path = NETWORKS) -> list[Link]:
    """Return the networks of conf/network/ that limit a link, the slowest uplink first.

    A network that only adds devices to another network's links is left out.
    """
    import yaml  # type: ignore[import-untyped]

    found = []
    for file in sorted(folder.glob("*.yaml")):
        content = yaml.safe_load(file.read_text())
        if content.get("up_mbps") and content.get("down_mbps") and "defaults" not in content:
            found.append(link_of(content, file.stem))
    return sorted(found, key=lambda link: link.network.up_mbps or 0)


def link_of(network: Mapping[str, Any], name: str = "") -> Link:
    """Return the link of a network's keys, which may be texts; a wrong value counts as missing."""

    def read(key: str) -> float | None:
        try:
            value = float(network.get(key) or 0)
        except (TypeError, ValueError):
            return None
        return value if 0 < value < 1e12 else None

    up, down, server = (read(f"{key}_mbps") for key in ("up", "down", "server"))
    return Link(name, Network(up, down, server, read("latency_ms") or 0.0))


def own_link(group: ReportGroup) -> Link:
    """Return the link over which the runs of a group were simulated; no limits if unknown."""
    found = {
        key.removeprefix("network."): text
        for key, text in group.settings.items()
        if key.startswith("network.")
    }
    return link_of(found)


def seconds_over(link: Link, rows: Sequence[Row], group: ReportGroup) -> list[float | None]:
    """Return the estimated seconds over a link until each row of a run's history.

    None for each row of a cut model, whose nodes exchange many small messages in a round, and for
    rows without bytes.
    """
    if group.cut:
        return [None] * len(rows)
    own, nodes = own_link(group), number(group.first, "nodes") or 1.0
    seconds: list[float | None] = []
    total, before = 0.0, Row()
    for row in rows:
        grown = _growth(before, row)
        if grown is None:
            seconds.append(None)
            continue
        total += _added(link, own, grown, nodes, group.asynchronous)
        seconds.append(total)
        before = row
    return seconds


@dataclass(frozen=True)
class _Growth:
    rounds: float
    replies: float
    down: float
    up: float
    virtual: float | None


def _growth(before: Row, row: Row) -> _Growth | None:
    """Return what happened between two rows; None if a row lacks its bytes."""
    down, up = (sent_bytes(row, way) for way in WAYS)
    rounds = number(row, "round")
    if down is None or up is None or rounds is None:
        return None
    then = [sent_bytes(before, way) or 0.0 for way in WAYS]
    now, past = number(row, "virtual_seconds"), number(before, "virtual_seconds") or 0.0
    replies = sum(
        (number(row, key) or 0.0) - (number(before, key) or 0.0)
        for key in ("client_updates", "failures")
    )
    return _Growth(
        rounds - (number(before, "round") or 0.0),
        replies,
        down - then[0],
        up - then[1],
        None if now is None else now - past,
    )


def _added(link: Link, own: Link, grown: _Growth, nodes: float, asynchronous: bool) -> float:
    """Return the seconds over a link between two rows."""
    replies = max(grown.replies, 1.0) if grown.down or grown.up else grown.replies
    if replies <= 0:
        return 0.0
    if asynchronous:
        exchanges, together = replies / nodes, nodes
    else:
        exchanges = max(grown.rounds, 1.0)
        together = replies / exchanges
    each = grown.down / replies, grown.up / replies
    messages = exchanges * link.seconds(*each, together)
    if grown.virtual is None:
        return messages
    return messages + max(0.0, grown.virtual - exchanges * own.seconds(*each, together))
