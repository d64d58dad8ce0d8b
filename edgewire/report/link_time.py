"""Estimates when a run over a given link would have come to each row, and a radio's energy.

The bytes and the accuracy of a round do not depend on the link, as long as no deadline, quorum or
time-out decides which replies are used. docs/reports.md has the formula. If the server's link is
limited, the nodes share it as in `edgewire.simulation.clock`: it carries one message after another.

In asynchronous training each node repeats its exchange without waiting for the others, and a shared
link needs at least the time of the messages of all nodes. The order in which the updates arrive,
and so the accuracy, depends a little on the link. The estimate ignores this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from edgewire.conf.network import FOLDER, Network, network_named, transfer_seconds
from edgewire.report.runs import Row, number, sent_bytes

# with these options of a strategy the link decides which replies are used
DECIDED_BY_LINK = ("strategy.deadline", "strategy.quorum")


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
    seconds, before = 0.0, Progress(0.0, 0.0, 0.0)
    for row in rows:
        if (cycles := row.cycles - before.cycles) > 0:
            down, up = (row.down - before.down) / cycles, (row.up - before.up) / cycles
            work = max(0.0, (row.work - before.work) / cycles)
            each = _cycle(network, nodes, down, up, work, asynchronous)
            seconds += cycles * each
            if asynchronous and not before.cycles:  # the first messages leave at the same time
                seconds += _cycle(network, nodes, down, up, work, False) - each
            before = row
        found.append(seconds)
    return found


def _cycle(
    network: Network, nodes: int, down: float, up: float, work: float, asynchronous: bool
) -> float:
    """Return the seconds in which `nodes` nodes receive and send equally many bytes once."""
    latency, reply = 2 * network.latency_ms / 1000, transfer_seconds(up, network.up_mbps)
    own = transfer_seconds(down, network.down_mbps)
    if network.server_mbps is None:
        return work + (latency + (own + reply))
    sending, receiving = (transfer_seconds(size, network.server_mbps) for size in (down, up))
    if asynchronous:
        alone = latency + max(own, sending) + reply + work
        return max(alone, nodes * sending, nodes * receiving)
    # On the server's link the messages of some nodes wait while others compute. The replies arrive
    # in the order of the messages. The link is busy until the end from the first reply on, or it
    # waits for the last reply.
    first, last = (latency + work + reply + max(own, at * sending) for at in (1, nodes))
    return max(first + (nodes - 1) * receiving, last, nodes * receiving)


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


def own_name(settings: Mapping[str, str]) -> str:
    """Return the name of the links in a run's configuration; "" if they have none."""
    own = speeds(own_links(settings))
    return next((name for name, link in named_links().items() if speeds(link) == own), "")


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
    each = nodes if asynchronous else 1  # rounds of the history that are one cycle of a node
    progress = []
    for row in known:
        down, up = ((sent_bytes(row, way) or 0.0) / replies for way in ("downlink", "uplink"))
        # in an asynchronous run some of the messages down are not answered yet
        answered = row["round"] / (row["round"] + each - 1) if each > 1 else 1.0
        progress.append(Progress(row["round"] / each, down * answered, up))
    own, late = own_links(settings), 0.0
    links = link_seconds(progress, own, 1 if asynchronous else replies, asynchronous)
    if asynchronous and (cycles := progress[-1].cycles):  # the first messages wait for each other
        one = [Progress(1, progress[-1].down / cycles, progress[-1].up / cycles)]
        late = link_seconds(one, own, nodes)[0] - link_seconds(one, own, 1)[0]
    virtual = [number(row.get("virtual_seconds")) or 0.0 for row in known]
    worked = [
        row._replace(work=max(0.0, whole - link - late))
        for row, whole, link in zip(progress, virtual, links, strict=True)
    ]
    return worked, replies


def seconds_over(
    network: Network, rows: Sequence[Row], result: Mapping[str, Any], settings: Mapping[str, str]
) -> list[float | None]:
    """Return the estimated seconds over a network's links until each row of a run's history.

    The devices work as long as in the run: its virtual time without messages; 0 without a virtual
    clock. None for rows without bytes, and for each row without `spent`, whose arguments these are,
    or if the link decides which replies are used.
    """
    decides = any(settings.get(key, "null") not in ("null", "1", "1.0") for key in DECIDED_BY_LINK)
    worked, replies = ([], 0) if decides else spent(rows, result, settings)
    seconds = iter(link_seconds(worked, network, replies, "staleness" in result))
    estimated = (next(seconds) if worked and _has_bytes(row) else math.inf for row in rows)
    return [each if math.isfinite(each) else None for each in estimated]


# The energy of a radio


class Radio(NamedTuple):
    """The power of a radio in watts, by published constants.

    `up`, `down`: watts for each Mbit/s; `base_up`, `base_down`: watts while it sends or receives;
    `tail`: watts in the `tail_seconds` after its last byte, in which it stays awake if no other
    message comes; `source`: where the numbers are from. The model ignores the energy of computing,
    retransmissions, signalling and the signal's strength. A device in the field can differ by
    several times.
    """

    up: float
    down: float
    base_up: float
    base_down: float
    tail: float
    tail_seconds: float
    source: str


# by the name of a network: https://doi.org/10.1145/2307636.2307658, and at 3.3 V 29 mA up and 10.8
# mA down in the data sheet's table 6
RADIOS: Mapping[str, Radio] = {
    "lte": Radio(0.43839, 0.05197, 1.28804, 1.28804, 1.06, 11.576, "Huang et al. 2012"),
    "wifi": Radio(0.28317, 0.13701, 0.13286, 0.13286, 0.1193, 0.2381, "Huang et al. 2012"),
    "lora": Radio(0.0, 0.0, 0.029 * 3.3, 0.0108 * 3.3, 0.0, 0.0, "data sheet of Semtech SX1276"),
}


def joules(radio: Radio, network: Network, spent: Progress, seconds: float) -> float:
    """Return the joules of one node's radio until a point of a run.

    `spent`: what the node has done until then; `seconds`: the time until then. The tail of each
    message ends when the next transfer begins. A link without a limit transfers in no time.
    """
    sending = transfer_seconds(spent.up, network.up_mbps)
    receiving = transfer_seconds(spent.down, network.down_mbps)
    energy = sending * (radio.base_up + radio.up * (network.up_mbps or 0.0))
    energy += receiving * (radio.base_down + radio.down * (network.down_mbps or 0.0))
    idle = max(0.0, seconds - sending - receiving)
    transfers = 2 * spent.cycles  # a message to the node, and its reply
    return energy + radio.tail * min(idle, transfers * radio.tail_seconds)
