"""Estimates how long a run takes over a link, from the bytes in its history.

The time is that of `edgewire.report.link_time`: messages and the devices' work. The work is the
virtual time without the messages over the run's own link; 0 without a virtual clock. The estimate
takes the mean over a round's nodes, and knows nothing of lost messages, and of devices of several
speeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from edgewire.conf.network import Network
from edgewire.report.html.run_data import ReportGroup
from edgewire.report.link_time import link_seconds, progress_of, work_seconds
from edgewire.report.runs import Row, number

NETWORKS = Path(__file__).parents[2] / "conf" / "network"
FORMULA = (
    "time of a round = 2 × latency + bytes down ÷ rate down + bytes up ÷ rate up + work",
    "bytes: those of one node that takes part in the round, whole messages",
    "shared server link: it carries one message of the round's nodes after another",
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
    keys = ("up_mbps", "down_mbps", "server_mbps", "latency_ms")
    return link_of({key: group.settings.get(f"network.{key}") for key in keys})


def seconds_over(link: Link, rows: Sequence[Row], group: ReportGroup) -> list[float | None]:
    """Return the estimated seconds over a link until each row of a run's history.

    None for each row of a cut model, whose nodes exchange many small messages in a round, and for
    rows without bytes.
    """
    needed = ("round", "uplink_bytes", "downlink_bytes")
    complete = [
        all((value := number(row.get(key))) is not None and value >= 0 for key in needed)
        for row in rows
    ]
    known = list(compress(rows, complete))
    if group.cut or not known:
        return [None] * len(rows)
    messages = sum(number(known[-1].get(key)) or 0 for key in ("client_updates", "failures"))
    nodes = max(1, int(number(group.first.get("nodes")) or 1))
    replies = nodes if group.asynchronous else max(1, round(messages / max(known[-1]["round"], 1)))
    progress = progress_of(known, group.first, replies, nodes if group.asynchronous else 1)
    virtual = [number(row.get("virtual_seconds")) for row in known]
    work = work_seconds(progress, virtual, own_link(group).network, replies, group.asynchronous)
    worked = [row._replace(steps=each) for row, each in zip(progress, work, strict=True)]
    over = replace(link.network, seconds_per_step=1.0)  # a step is a second of work
    seconds = iter(link_seconds(worked, over, replies, group.asynchronous))
    found = (next(seconds) if each else math.inf for each in complete)
    return [each if math.isfinite(each) else None for each in found]
