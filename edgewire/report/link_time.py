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
for the first message, or always if the link is busy all the time. The order in which the updates
arrive, and so the accuracy, depends a little on the link. The estimate ignores this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from edgewire.conf.network import Network, network_named
from edgewire.report.errors import ResultsError

SPEEDS = (1e-6, 1e9)  # the slowest and the fastest link in Mbit/s whose times are computed


class Progress(NamedTuple):
    """What an average node has done since the start of the run.

    `cycles`: rounds, or in asynchronous training the updates of one node. `down`, `up`: bytes.
    `steps`: local steps of the slowest node; None if they are unknown.
    """

    cycles: float
    down: float
    up: float
    steps: float | None


def parse_link(text: str) -> Network:
    """Return the network of "DOWN/UP" in Mbit/s, or of a name in conf/network/.

    Raises `ResultsError` for another text, and for a network whose times cannot be estimated.
    """
    if "/" not in text:
        try:
            return checked(network_named(text))
        except (ValueError, OSError) as error:
            raise ResultsError(f"--link {text}: {error}; or give DOWN/UP in Mbit/s") from error
    speeds = text.split("/")
    try:
        down, up = (float(speed) for speed in speeds)
    except ValueError as error:
        raise ResultsError(f"--link takes DOWN/UP in Mbit/s, such as 10/1, not {text}") from error
    network = network_of(down_mbps=down, up_mbps=up, seconds_per_step=0.01)
    if not all(SPEEDS[0] <= speed <= SPEEDS[1] for speed in (down, up)):
        least, most = SPEEDS
        raise ResultsError(f"--link takes speeds from {least:g} to {most:g} Mbit/s, not {text}")
    return network


def network_of(base: Network | None = None, **values: float | None) -> Network:
    """Return a network with these values. Raises `ResultsError` for a value out of bounds."""
    try:
        return replace(base or Network(), **values)  # type: ignore[arg-type]
    except ValueError as error:
        raise ResultsError(str(error).replace("network.", "the link's ")) from error


def checked(network: Network) -> Network:
    """Return the network. Raises `ResultsError` if chance decides when its nodes answer."""
    random = {
        "waits": network.waiting != "none",
        "losses": network.loss,
        "crashes": network.crash,
        "late joins": network.join_seconds,
        "devices of several speeds": network.classes,
    }
    if found := [name for name, value in random.items() if value]:
        raise ResultsError(f"a link with {found[0]} needs real runs: python run.py network=NAME")
    return network


def link_seconds(
    rows: Sequence[Progress], network: Network, nodes: int, asynchronous: bool = False
) -> list[float]:
    """Return for each row the estimated seconds since the start, on nodes with this network.

    `nodes`: how many nodes take part in a round. Unknown local steps count as none.
    """
    found: list[float] = []
    seconds, before = 0.0, Progress(0.0, 0.0, 0.0, 0.0)
    for row in rows:
        if (cycles := row.cycles - before.cycles) > 0:
            down, up = (row.down - before.down) / cycles, (row.up - before.up) / cycles
            steps = max(0.0, ((row.steps or 0.0) - (before.steps or 0.0)) / cycles)
            if asynchronous:
                cycle, wait = _node_cycle(network, nodes, down, up, steps)
                seconds += cycles * cycle + (wait if before.cycles == 0 else 0.0)
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


def _node_cycle(
    network: Network, nodes: int, down: float, up: float, steps: float
) -> tuple[float, float]:
    """Return the seconds of a node's asynchronous cycle, and those that it waits before the first.

    The server sends its first messages at the same time. If all nodes share its link, the last node
    waits for the messages to the others. Later the nodes send at different times. Then a node waits
    only if the link is always busy.
    """
    alone = _round(network, 1, down, up, steps)
    if network.server_mbps is None:
        return alone, 0.0
    busy = transfer_seconds(nodes * max(down, up), network.server_mbps)
    waits = transfer_seconds((nodes - 1) * down, network.server_mbps)
    return (busy, 0.0) if busy > alone else (alone, waits)


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
    links = link_seconds([row._replace(steps=0.0) for row in rows], plain, nodes, asynchronous)
    return [
        None if seconds is None else max(0.0, seconds - link)
        for seconds, link in zip(virtual_seconds, links, strict=True)
    ]


def local_steps(
    rows: Sequence[Progress],
    virtual_seconds: Sequence[float | None],
    own: Network,
    nodes: int,
    asynchronous: bool,
) -> list[float | None]:
    """Return a node's local steps up to each row, from the virtual time of the run itself.

    `own`: the network of the run. A value is None if the row has no virtual time, if a step takes
    none, and for asynchronous nodes that share a link: while some nodes compute, others send.
    """
    step = own.seconds_per_step
    if not step or (asynchronous and own.server_mbps is not None):
        return [None] * len(rows)
    waits = 0.0 if own.waiting == "none" else own.waiting_seconds
    work = work_seconds(rows, virtual_seconds, own, nodes, asynchronous)
    return [
        None if seconds is None else max(0.0, (seconds - waits * row.cycles) / step)
        for row, seconds in zip(rows, work, strict=True)
    ]


def network_from(values: Mapping[str, str], own: Mapping[str, object] | None = None) -> Network:
    """Return the network of a run: from its saved configuration `own`, or from its overrides.

    `values`: the run's values as `edgewire.report.advise.presets.effective` returns them. Raises
    `ValueError` for a network that cannot be read.
    """
    if own is None:
        base = network_named(values.get("network", "ideal"))
        given = {
            key.removeprefix("network."): _number(value)
            for key, value in values.items()
            if key.startswith("network.") and key.count(".") == 1
        }
        return replace(base, **given)  # type: ignore[arg-type]
    known = Network.__dataclass_fields__.keys() - {"classes"}
    return Network(**{key: value for key, value in own.items() if key in known})  # type: ignore[arg-type]


def _number(text: str) -> float | str | None:
    if text in ("null", "None"):
        return None
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text
