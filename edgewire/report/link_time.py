"""Estimates when a run over a given link would have come to each row of its history.

The bytes and the accuracy of a round do not depend on the link, as long as no deadline, quorum or
time-out decides which replies are used. So the time on another link follows from the rounds, the
bytes and the local steps of one run. In synchronous training a round takes

    2 x latency + bytes down / speed down + local steps x seconds per step + bytes up / speed up

at the slowest node. If the server's link is limited, the nodes share it as in
`edgewire.simulation.clock`: it carries one message after another. All nodes are assumed to send
equally many bytes.

In asynchronous training each node repeats these four parts without waiting for the others. A node
has sent its share of the updates after as many cycles. If the server's link is shared, a node waits
for the messages of the others. The order in which the updates arrive, and so the accuracy, depends
a little on the link. The estimate ignores this.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from edgewire.conf.network import FOLDER, Network, network_named
from edgewire.report.runs import Row, number, sent_bytes

_CYCLES = 10  # after so many replies of each node an asynchronous server's rate is constant


class Progress(NamedTuple):
    """What an average node has done since the start of the run.

    `cycles`: rounds, or in asynchronous training the updates of one node. `down`, `up`: bytes.
    `work`: seconds of the slowest node's own work.
    """

    cycles: float
    down: float
    up: float
    work: float = 0.0


def link_seconds(
    rows: Sequence[Progress], network: Network, nodes: int, asynchronous: bool = False
) -> list[float]:
    """Return for each row the estimated seconds since the start, on nodes with these links.

    `nodes`: how many nodes take part in a round.
    """
    found: list[float] = []
    server = _AsynchronousServer(network, nodes)
    seconds, before = 0.0, Progress(0.0, 0.0, 0.0)
    for row in rows:
        if (cycles := row.cycles - before.cycles) > 0:
            down, up = (row.down - before.down) / cycles, (row.up - before.up) / cycles
            work = max(0.0, (row.work - before.work) / cycles)
            if asynchronous:
                seconds = server.seconds_until(round(row.cycles * nodes), down, up, work)
            else:
                seconds += cycles * _round(network, nodes, down, up, work)
            before = row
        found.append(seconds)
    return found


def _round(network: Network, nodes: int, down: float, up: float, work: float) -> float:
    """Return the seconds of a round in which `nodes` nodes receive and send equally many bytes."""
    latency, reply = 2 * network.latency_ms / 1000, transfer_seconds(up, network.up_mbps)
    own = transfer_seconds(down, network.down_mbps)
    if network.server_mbps is None:
        return work + (latency + (own + reply))
    # On the server's link the messages of some nodes wait while others compute. The replies arrive
    # in the order of the messages. The link is busy until the end from the first reply on, or it
    # waits for the last reply.
    sending, receiving = (transfer_seconds(size, network.server_mbps) for size in (down, up))
    first, last = (latency + work + reply + max(own, at * sending) for at in (1, nodes))
    return max(first + (nodes - 1) * receiving, last, nodes * receiving)


class _AsynchronousServer:
    """The times at which an asynchronous server gets the replies of equal nodes.

    The nodes share the server's link in the order of the messages, so the reply to each message
    arrives after the replies to the messages before it.
    """

    def __init__(self, network: Network, nodes: int) -> None:
        self._network, self._nodes = network, nodes
        self._sent = deque([0.0] * nodes)  # when the messages under way were sent, oldest first
        self._count = 0  # replies
        self._sending = self._receiving = 0.0  # until when the server's link is busy

    def seconds_until(self, count: int, down: float, up: float, work: float) -> float:
        """Return when the reply number `count` arrives; `down`, `up`: bytes of each new message.

        After some replies of each node the rest follows at the same rate.
        """
        new, self._count = max(0, count - self._count), count
        settled, most = (min(new, cycles * self._nodes) for cycles in (_CYCLES, 2 * _CYCLES))
        before = 0.0
        for reply in range(most):
            before = self._receiving if reply == settled else before
            self._reply(down, up, work)
        if new > most:
            later = (new - most) * (self._receiving - before) / (most - settled)
            self._sending, self._receiving = self._sending + later, self._receiving + later
            self._sent = deque(sent + later for sent in self._sent)
        return self._receiving

    def _reply(self, down: float, up: float, work: float) -> None:
        """Deliver the oldest message, and its reply; then send the node its next message."""
        network, sent = self._network, self._sent.popleft()
        sending, receiving = (transfer_seconds(size, network.server_mbps) for size in (down, up))
        self._sending = max(sent, self._sending) + sending
        arrives = max(sent + transfer_seconds(down, network.down_mbps), self._sending)
        beside = 2 * network.latency_ms / 1000 + transfer_seconds(up, network.up_mbps) + work
        self._receiving = max(arrives + beside, self._receiving + receiving)
        self._sent.append(self._receiving)


def transfer_seconds(size: float, mbps: float | None) -> float:
    """Return the seconds in which a link carries bytes; 0 without a limit (None)."""
    return size * 8 / (mbps * 1e6) if mbps else 0.0


def _progress(row: Row, replies: int, per_cycle: int) -> Progress:
    """Return what an average node had done at a row of a history, without its own work.

    `replies`: of a cycle. `per_cycle`: how many rounds of the history are one cycle of a node.
    """
    down, up = ((sent_bytes(row, way) or 0.0) / replies for way in ("downlink", "uplink"))
    if per_cycle > 1:  # asynchronous: the server has sent messages that are not answered yet
        down *= row["round"] / (row["round"] + per_cycle - 1)
    return Progress(row["round"] / per_cycle, down, up)


def _works(
    rows: Sequence[Progress],
    virtual_seconds: Sequence[float | None],
    own: Network,
    nodes: int,
    asynchronous: bool,
) -> list[float]:
    """Return the seconds of a node's own work up to each row: the virtual time without messages.

    `own`: the links of the run. 0 for a row without a virtual time.
    """
    if asynchronous and own.server_mbps is not None and virtual_seconds[-1] is not None:
        work = _work_of_a_cycle(rows[-1], virtual_seconds[-1], own, nodes)
        return [row.cycles * work for row in rows]
    links = link_seconds(rows, own, nodes, asynchronous)
    return [
        max(0.0, (seconds or 0.0) - link)
        for seconds, link in zip(virtual_seconds, links, strict=True)
    ]


def _work_of_a_cycle(row: Progress, seconds: float, own: Network, nodes: int) -> float:
    """Return a node's seconds of work in a cycle, with which an asynchronous run takes `seconds`.

    While some nodes work, others use the server's link, so the time without work says too little.
    """
    low, high = 0.0, seconds
    for _ in range(40):
        middle = (low + high) / 2
        worked = row._replace(work=middle * row.cycles)
        late = link_seconds([worked], own, nodes, True)[0] > seconds
        low, high = (low, middle) if late else (middle, high)
    return low


def _has_bytes(row: Row) -> bool:
    """Return whether a row has a round, and bytes in both directions."""
    needed = ("round", "uplink_bytes", "downlink_bytes")
    return all((value := number(row.get(key))) is not None and value >= 0 for key in needed)


def speeds(network: Network) -> str:
    """Return the rates and the latency of a network's links as text."""
    rates = ", ".join(
        f"{rate:g} Mbit/s {way}"
        for way, rate in (("up", network.up_mbps), ("down", network.down_mbps))
        if rate is not None
    )
    shared = ", shared by all nodes" if network.server_mbps is not None else ""
    return f"{rates}{shared}, latency {network.latency_ms:g} ms"


def named_links() -> dict[str, Network]:
    """Return the networks of conf/network/ that limit a link by name, the slowest uplink first.

    A network with classes of devices, which has another network's links, is left out.
    """
    found = {file.stem: network_named(file.stem) for file in sorted(FOLDER.glob("*.yaml"))}
    limited = [
        (name, each) for name, each in found.items()
        if each.up_mbps and each.down_mbps and not each.classes
    ]  # fmt: skip
    return dict(sorted(limited, key=lambda pair: pair[1].up_mbps or 0))


def own_links(settings: Mapping[str, str]) -> Network:
    """Return the links in a run's configuration, flat; a wrong or missing value is no limit."""

    def read(key: str) -> float | None:
        with suppress(ValueError):
            value = float(settings.get(f"network.{key}") or 0)
            return value if 0 < value < 1e12 else None
        return None

    up, down, server = map(read, ("up_mbps", "down_mbps", "server_mbps"))
    return Network(up, down, server, read("latency_ms") or 0.0)


def spent(
    rows: Sequence[Row], result: Mapping[str, Any], settings: Mapping[str, str]
) -> tuple[list[Progress], int]:
    """Return what an average node had done at the rows with bytes, and the replies of a cycle.

    `settings`: the run's configuration, flat. There is nothing for a cut model, whose nodes
    exchange many small messages in a round.
    """
    known = [row for row in rows if _has_bytes(row)]
    if result.get("segments") or not known:
        return [], 0
    asynchronous = "staleness" in result
    messages = sum(number(known[-1].get(key)) or 0 for key in ("client_updates", "failures"))
    nodes = max(1, int(number(result.get("nodes")) or 1))
    replies = nodes if asynchronous else max(1, round(messages / max(known[-1]["round"], 1)))
    progress = [_progress(row, replies, nodes if asynchronous else 1) for row in known]
    virtual = [number(row.get("virtual_seconds")) for row in known]
    works = _works(progress, virtual, own_links(settings), replies, asynchronous)
    return [row._replace(work=work) for row, work in zip(progress, works, strict=True)], replies


def seconds_over(
    network: Network, rows: Sequence[Row], result: Mapping[str, Any], settings: Mapping[str, str]
) -> list[float | None]:
    """Return the estimated seconds over a network's links until each row of a run's history.

    The devices work as long as in the run: its virtual time without messages; 0 without a virtual
    clock. None for rows without bytes, and for each row without `spent`, whose arguments these are.
    """
    worked, replies = spent(rows, result, settings)
    seconds = iter(link_seconds(worked, network, replies, "staleness" in result))
    estimated = (next(seconds) if worked and _has_bytes(row) else math.inf for row in rows)
    return [each if math.isfinite(each) else None for each in estimated]
