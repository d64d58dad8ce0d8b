"""The state of each node, as the server sees it and as the node tells it (`device.telemetry`).

What a node tells may be false, but each value has the type and the range that `NodeState` says.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edgewire.deploy.server.access import FLEET, App, Scope, Send
from edgewire.deploy.server.node_registry import GONE

MOST = 10_000  # nodes that are remembered: those with the latest requests
_INFLATED = 1 << 10  # bytes of the longest telemetry, inflated


@dataclass
class NodeState:
    """The state of a node. None and "": unknown. Counts begin when the server starts.

    By the server: `node`: Flower's id. `name`: of its key. `status`: "registered" (was never
    online), "online" or "offline". `last_seen`: the time of its last request, in seconds since
    1970. `clock_offset`: seconds by which its clock is ahead of the server's, less the time of the
    message. `failures`: its error replies; `streak`: those since its last usable reply.
    `uplink_bytes`, `downlink_bytes`: of its requests and of their responses, with HTTP's heads.

    By the node: `edgewire`, `flower`, `python`: versions. `free_disk`: bytes where its state is.
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
    edgewire: str = ""
    flower: str = ""
    python: str = ""
    free_disk: float | None = None
    temperature: float | None = None
    undervoltage: bool | None = None
    error: str = ""
    error_text: str = ""


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value, re.ASCII))


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and least <= value <= most


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("edgewire", "flower", "python"), _text(r"[\w.+!-]{1,24}")),
    "free_disk": _number(0, 1e18),
    "temperature": _number(-100, 300),
    "undervoltage": lambda value: type(value) is bool,
    "error": _text(r"[\w ]{1,40}"),
    "error_text": lambda value: isinstance(value, str) and len(value) <= 80 and value.isprintable(),
}


class FleetStates:
    """The states of the nodes, in memory."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeState] = {}  # by id, the latest request last

    def all(self, state: Any) -> list[NodeState]:
        """Return the states of the nodes that are registered in a SuperLink's state, by name."""
        found = []
        for each in state.get_node_info():
            if each.status != GONE:
                found.append(self._nodes.get(each.node_id) or NodeState(each.node_id))
                found[-1].name, found[-1].status = each.name, each.status
        return sorted(found, key=lambda node: (node.name, node.node))

    def pulled(self, node: int, stamp: str, telemetry: bytes) -> None:
        """Note a pull: the time in its signature, in ISO format, and telemetry or b""."""
        about, said = self._of(node), None
        about.clock_offset = datetime.fromisoformat(stamp).timestamp() - time.time()
        with suppress(zlib.error, ValueError, RecursionError):
            said = json.loads(zlib.decompressobj(-15).decompress(telemetry, _INFLATED))
        for name, value in said.items() if isinstance(said, dict) else ():
            if name in _CHECKS and _CHECKS[name](value):
                setattr(about, name, value)

    def replied(self, node: int, reply: str, failed: bool) -> None:
        """Count a reply with this id; a reply that comes again counts once."""
        about = self._of(node)
        if about.reply != reply:
            about.reply, about.failures = reply, about.failures + failed
            about.streak = about.streak + 1 if failed else 0

    def answered(self, node: int, uplink_bytes: int, downlink_bytes: int) -> None:
        """Count the bytes of a request and of its response."""
        about = self._of(node)
        about.uplink_bytes += uplink_bytes
        about.downlink_bytes += downlink_bytes

    def _of(self, node: int) -> NodeState:
        """Return the state of a node that makes a request now."""
        self._nodes[node] = found = self._nodes.pop(node, None) or NodeState(node)
        found.last_seen = time.time()
        if len(self._nodes) > MOST:
            del self._nodes[next(iter(self._nodes))]
        return found


def counted(app: App, states: FleetStates) -> App:
    """Return an ASGI app that counts the bytes of the requests that nodes send to `app`."""

    async def call(scope: Scope, receive: Any, send: Send) -> None:
        up, down, status = _bytes(scope), 0, 0

        async def received() -> Any:
            nonlocal up
            message = await receive()
            up += _bytes(message)
            return message

        async def sent(message: Scope) -> None:
            nonlocal down, status
            down, status = down + _bytes(message), message.get("status", status)
            await send(message)

        await app(scope, received, sent)
        asks = scope.get("state", {}).get("protobuf_request")  # what Flower has authenticated
        node = getattr(getattr(asks, "node", asks), "node_id", 0)
        if node and status == 200 and scope["path"].startswith(FLEET):
            states.answered(node, up, down)

    return call


def _bytes(message: Scope) -> int:
    """Return the bytes of the headers and of the body in a message of ASGI."""
    headers = sum(len(name) + len(value) + 4 for name, value in message.get("headers", ()))
    return headers + len(message.get("body", b""))
