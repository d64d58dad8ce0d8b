"""The state of each node, as the server sees it and as the node's telemetry tells it.

A node may tell anything. A value is taken only if it has the type and the range of its field.
"""

from __future__ import annotations

import json
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.node_registry import GONE

MOST = 10_000  # nodes that are remembered: those with the latest requests
INFLATED = 1 << 10  # bytes of telemetry that are read, at most


@dataclass
class NodeState:
    """The state of a node. None and "": unknown. Counts begin when the server starts.

    By the server: `node`: Flower's id. `name`: of its key. `status`: "registered" (was never
    online), "online" or "offline". `last_seen`: the time of its last pull or heartbeat, in seconds
    since 1970; two minutes earlier if it has ended. `clock_offset`: seconds by which its clock is
    ahead of the server's, less the time that the request took. `failures`: its error replies;
    `streak`: those since its last usable reply; `reply`: the id of its last reply.
    `uplink_bytes`, `downlink_bytes`: of the bodies of its pulls, pushes and downloads.

    By the node: `clock_ahead`: what it has subtracted from the time that it signs, in seconds.
    `edgewire`, `flower`, `python`: versions. `free_disk`: bytes where its state is.
    `temperature`: of its hottest part, in degrees Celsius. `undervoltage`: whether its supply is
    too weak. `error`: the kind of its last error, such as "ValueError"; `error_text`: one line of
    printable characters, only with `--tell-errors`.
    """

    node: int
    name: str = ""
    status: str = ""
    last_seen: float | None = None
    clock_offset: float | None = None
    failures: int = 0
    streak: int = 0
    reply: str = ""
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    clock_ahead: float = 0.0
    edgewire: str = ""
    flower: str = ""
    python: str = ""
    free_disk: float | None = None
    temperature: float | None = None
    undervoltage: bool | None = None
    error: str = ""
    error_text: str = ""


# The fields that telemetry has: the most characters of texts, and the ranges of numbers.
_TEXTS = {"edgewire": 40, "flower": 40, "python": 40, "error": 40, "error_text": 80}
_RANGES = {"free_disk": (0, 1e18), "temperature": (-100, 300), "clock_ahead": (-1e10, 1e10)}


def _is_sound(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str) and len(value) <= _TEXTS[name] and value.isprintable()
    if name in _RANGES:
        return type(value) in (int, float) and _RANGES[name][0] <= value <= _RANGES[name][1]
    return name == "undervoltage" and type(value) is bool


class FleetStates:
    """The states of the nodes, in memory."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeState] = {}  # by id, the latest request last

    def all(self, state: Any) -> list[NodeState]:
        """Return the states of the nodes that are registered in a SuperLink's state, by name."""
        found, late = [], time.time() - steady_clock.now().timestamp()
        for each in state.get_node_info():
            if each.status != GONE:
                found.append(node := self._nodes.get(each.node_id) or NodeState(each.node_id))
                node.name, node.status = each.name, each.status
                if each.online_until:
                    node.last_seen = late + each.online_until - 2 * each.heartbeat_interval
        return sorted(found, key=lambda node: (node.name, node.node))

    def of(self, node: int) -> NodeState:
        """Return the state of a node that has made a request."""
        self._nodes[node] = found = self._nodes.pop(node, None) or NodeState(node)
        if len(self._nodes) > MOST:
            del self._nodes[next(iter(self._nodes))]
        return found

    def pulled(self, node: int, stamp: str, telemetry: bytes) -> None:
        """Note a pull: the time in its signature, in ISO format, and telemetry or b""."""
        about, told = self.of(node), None
        with suppress(zlib.error, ValueError, RecursionError):
            told = json.loads(zlib.decompressobj(-15).decompress(telemetry, INFLATED))
        for name, value in told.items() if isinstance(told, dict) else ():
            if _is_sound(name, value):
                setattr(about, name, value)
        signed = datetime.fromisoformat(stamp).timestamp()
        about.clock_offset = signed - time.time() + about.clock_ahead

    def replied(self, node: int, reply: str, failed: bool) -> None:
        """Count a reply with this id; a reply that comes again counts once."""
        about = self.of(node)
        if about.reply != reply:
            about.reply, about.failures = reply, about.failures + failed
            about.streak = about.streak + 1 if failed else 0
