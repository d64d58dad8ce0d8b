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
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

from edgewire.conf.network import FOLDER, Network
from edgewire.report.runs import Row, number

FORMULA = (
    "time of a round = 2 × latency + bytes down ÷ rate down + bytes up ÷ rate up + work",
    "bytes: those of one node that takes part in the round, whole messages",
    "shared server link: it carries one message of the round's nodes after another",
    "work: the round's virtual time without its messages; 0 if no virtual clock was recorded",
    "asynchronous run: one exchange, divided by the number of nodes, for each reply",
)
_CYCLES = 10  # after so many replies of each node an asynchronous server's rate is constant


class Progress(NamedTuple):
    """What an average node has done since the start of the run.

    `cycles`: rounds, or in asynchronous training the updates of one node. `down`, `up`: bytes.
    `steps`: local steps of the slowest node; None if they are unknown.
    """

    cycles: float
    down: float
    up: float
    steps: float | None


def link_seconds(
    rows: Sequence[Progress], network: Network, nodes: int, asynchronous: bool = False
) -> list[float]:
    """Return for each row the estimated seconds since the start, on nodes with this network.

    `nodes`: how many nodes take part in a round. Unknown local steps count as none.
    """
    found: list[float] = []
    server = _AsynchronousServer(network, nodes)
    seconds, before = 0.0, Progress(0.0, 0.0, 0.0, 0.0)
    for row in rows:
        if (cycles := row.cycles - before.cycles) > 0:
            down, up = (row.down - before.down) / cycles, (row.up - before.up) / cycles
            steps = max(0.0, ((row.steps or 0.0) - (before.steps or 0.0)) / cycles)
            if asynchronous:
                seconds = server.seconds_until(round(row.cycles * nodes), down, up, steps)
            else:
                seconds += cycles * _round(network, nodes, down, up, steps)
            before = row
        found.append(seconds)
    return found


def _round(network: Network, nodes: int, down: float, up: float, steps: float) -> float:
    """Return the seconds of a round in which `nodes` nodes receive and send equally many bytes."""
    work = steps * network.seconds_per_step + (network.encoding_seconds if steps else 0.0)
    if network.server_mbps is None:
        each = transfer_seconds(down, network.down_mbps) + transfer_seconds(up, network.up_mbps)
        return work + (2 * network.latency_ms / 1000 + each)
    # On the server's link the messages of some nodes wait while others compute. The replies arrive
    # in the order of the messages. The link is busy until the end from the first reply on, or it
    # waits for the last reply.
    sending, receiving = (transfer_seconds(size, network.server_mbps) for size in (down, up))
    beside = 2 * network.latency_ms / 1000 + work + transfer_seconds(up, network.up_mbps)
    own = transfer_seconds(down, network.down_mbps)
    first, last = (beside + max(own, place * sending) for place in (1, nodes))
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

    def seconds_until(self, count: int, down: float, up: float, steps: float) -> float:
        """Return when the reply number `count` arrives; `down`, `up`: bytes of each new message.

        After some replies of each node the rest follows at the same rate.
        """
        new, self._count = max(0, count - self._count), count
        settled, most = (min(new, cycles * self._nodes) for cycles in (_CYCLES, 2 * _CYCLES))
        before = 0.0
        for reply in range(most):
            before = self._receiving if reply == settled else before
            self._reply(down, up, steps)
        if new > most:
            later = (new - most) * (self._receiving - before) / (most - settled)
            self._sending, self._receiving = self._sending + later, self._receiving + later
            self._sent = deque(sent + later for sent in self._sent)
        return self._receiving

    def _reply(self, down: float, up: float, steps: float) -> None:
        """Deliver the oldest message, and its reply; then send the node its next message."""
        network, sent = self._network, self._sent.popleft()
        sending, receiving = (transfer_seconds(size, network.server_mbps) for size in (down, up))
        self._sending = max(sent, self._sending) + sending
        arrives = max(sent + transfer_seconds(down, network.down_mbps), self._sending)
        beside = 2 * network.latency_ms / 1000 + transfer_seconds(up, network.up_mbps)
        beside += steps * network.seconds_per_step + (network.encoding_seconds if steps else 0.0)
        self._receiving = max(arrives + beside, self._receiving + receiving)
        self._sent.append(self._receiving)


def transfer_seconds(size: float, mbps: float | None) -> float:
    """Return the seconds in which a link carries bytes; 0 without a limit (None)."""
    return size * 8 / (mbps * 1e6) if mbps else 0.0


def progress_of(
    rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any], replies: int, per_cycle: int
) -> list[Progress]:
    """Return what an average node had done at each row of a history, without its local steps.

    `result`: of the run, whose bytes beside the payloads a row of an archive lacks. `replies`: of
    a cycle. `per_cycle`: how many rounds of the history are one cycle of a node.
    """
    found = []
    last = max(result.get("round") or 0, rows[-1]["round"]) if rows else 0
    for row in rows:
        totals = []
        for way in ("downlink", "uplink"):
            beside = [f"{way}_other_bytes", f"{way}_header_bytes"]
            if all(row.get(key) is not None for key in beside):
                extra = sum(row[key] for key in beside)
            else:  # an archive stores only the sums at the end
                extra = sum(result.get(key) or 0 for key in beside) * row["round"] / (last or 1)
            totals.append(((row.get(f"{way}_bytes") or 0) + extra) / replies)
        if per_cycle > 1:  # asynchronous: the server has sent messages that are not answered yet
            totals[0] *= row["round"] / (row["round"] + per_cycle - 1)
        found.append(Progress(row["round"] / per_cycle, totals[0], totals[1], None))
    return found


def work_seconds(
    rows: Sequence[Progress],
    virtual_seconds: Sequence[float | None],
    own: Network,
    nodes: int,
    asynchronous: bool,
) -> list[float | None]:
    """Return the seconds of a node's own work up to each row: the virtual time without messages.

    `own`: the network of the run. None for a row without a virtual time.
    """
    plain = replace(own, waiting="none", classes={})
    if asynchronous and own.server_mbps is not None and rows and virtual_seconds[-1] is not None:
        work = _work_of_a_cycle(rows[-1], virtual_seconds[-1], plain, nodes)
        return [row.cycles * work for row in rows]
    links = link_seconds([row._replace(steps=0.0) for row in rows], plain, nodes, asynchronous)
    return [
        None if seconds is None else max(0.0, seconds - link)
        for seconds, link in zip(virtual_seconds, links, strict=True)
    ]


def _work_of_a_cycle(row: Progress, seconds: float, own: Network, nodes: int) -> float:
    """Return a node's seconds of work in a cycle, with which an asynchronous run takes `seconds`.

    While some nodes work, others use the server's link, so the time without work says too little.
    """
    own, low, high = replace(own, seconds_per_step=1.0, encoding_seconds=0.0), 0.0, seconds
    for _ in range(40):
        middle = (low + high) / 2
        worked = row._replace(steps=middle * row.cycles)
        late = link_seconds([worked], own, nodes, True)[0] > seconds
        low, high = (low, middle) if late else (middle, high)
    return low


class RunProgress(NamedTuple):
    """A run's rows with the progress of an average node at each; `replies`: of a round's nodes."""

    rows: Sequence[Row]
    progress: Sequence[Progress]
    replies: int
    asynchronous: bool


def run_progress(rows: Sequence[Row], result: Mapping[str, Any]) -> RunProgress | None:
    """Return the progress at the rows that have a round and bytes; `result`: the run's result.

    None without such a row, and for a cut model, whose nodes exchange many small messages in a
    round.
    """
    known = list(compress(rows, map(has_bytes, rows)))
    if result.get("segments") or not known:
        return None
    asynchronous = "staleness" in result
    messages = sum(number(known[-1].get(key)) or 0 for key in ("client_updates", "failures"))
    nodes = max(1, int(number(result.get("nodes")) or 1))
    replies = nodes if asynchronous else max(1, round(messages / max(known[-1]["round"], 1)))
    progress = progress_of(known, result, replies, nodes if asynchronous else 1)
    return RunProgress(known, progress, replies, asynchronous)


def has_bytes(row: Row) -> bool:
    """Return whether a row has a round, and bytes in both directions."""
    needed = ("round", "uplink_bytes", "downlink_bytes")
    return all((value := number(row.get(key))) is not None and value >= 0 for key in needed)


_LIMITS = ("up_mbps", "down_mbps", "server_mbps")


def number_of(text: object) -> float | None:
    """Return a finite number that a text is; None for another value."""
    try:
        value = float(text or 0)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


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


def named_links() -> list[Link]:
    """Return the networks of conf/network/ that limit a link, the slowest uplink first.

    A network that only adds devices to another network's links is left out.
    """
    import yaml  # type: ignore[import-untyped]

    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        content = yaml.safe_load(file.read_text())
        if content.get("up_mbps") and content.get("down_mbps") and "defaults" not in content:
            found.append(link_of(content, file.stem))
    return sorted(found, key=lambda link: link.network.up_mbps or 0)


def link_of(network: Mapping[str, Any], name: str = "") -> Link:
    """Return the link of a network's keys, which may be texts; a wrong value counts as missing."""

    def read(key: str) -> float | None:
        value = number_of(network.get(key))
        return value if value and 0 < value < 1e12 else None

    up, down, server = map(read, _LIMITS)
    return Link(name, Network(up, down, server, read("latency_ms") or 0.0))


def own_link(settings: Mapping[str, str]) -> Link:
    """Return the link of a run's configuration, flat; no limits if it is unknown."""
    return link_of({key: settings.get(f"network.{key}") for key in (*_LIMITS, "latency_ms")})


def seconds_over(
    link: Link, rows: Sequence[Row], result: Mapping[str, Any], settings: Mapping[str, str]
) -> list[float | None]:
    """Return the estimated seconds over a link until each row of a run's history.

    The devices work as long as in the run: its virtual time without messages; 0 without a virtual
    clock. `settings`: the run's configuration, flat. None for rows without bytes, and for each row
    of a cut model.
    """
    if (found := run_progress(rows, result)) is None:
        return [None] * len(rows)
    _, progress, replies, asynchronous = found
    own = own_link(settings).network
    virtual = [number(row.get("virtual_seconds")) for row in found.rows]
    work = work_seconds(progress, virtual, own, replies, asynchronous)
    worked = [row._replace(steps=each) for row, each in zip(progress, work, strict=True)]
    over = replace(link.network, seconds_per_step=1.0)  # a step is a second of work
    seconds = iter(link_seconds(worked, over, replies, asynchronous))
    estimated = (next(seconds) if has_bytes(row) else math.inf for row in rows)
    return [each if math.isfinite(each) else None for each in estimated]
