"""Who may ask a SuperLink for what: from outside, only what a node needs.

A SuperLink serves three things on one port: the Fleet API to nodes, the Runtime API to the
ServerApp's process, the Control API to whoever starts runs. It asks the last one for nothing: who
reaches it can start a run, which is code on the server and on every node. So all but the Fleet API
is for inside, and so is what registers nodes, where they have keys.

Inside is who comes from this machine, by 127.0.0.1, ::1 or a Unix socket: each of its users, that
is. What a header says of an origin is not believed. A request that bears one of the headers by
which proxies tell (`FORWARDED`) counts as from outside, wherever it comes from. A proxy on this
machine that sets none of them lets everybody in: have it pass on `/v1/fleet/` alone.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

LIMIT = 2 << 30  # bytes of a request: of a message with its objects
FLEET = "/v1/fleet/"
REGISTERING = (f"{FLEET}register-node", f"{FLEET}unregister-node")
_ORIGINS = "forwarded via x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip"
FORWARDED = frozenset(name.encode() for name in f"{_ORIGINS} true-client-ip x-client-ip".split())


class LocalOnly:
    """Wraps an ASGI app: what is for inside gets status 403 when it is asked for from outside.

    `closed`: whether nodes are registered from inside alone, as they are where they have keys.
    """

    def __init__(self, app: App, closed: bool = True) -> None:
        self._app = app
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or self.admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await refuse(send, 403, "this is for the server's own machine")
        else:
            await send({"type": "websocket.close", "code": 1008})

    def admits(self, scope: Scope) -> bool:
        """Return whether a request may go on."""
        if is_inside(scope):
            return True
        path = scope["path"]
        for_nodes = scope["type"] == "http" and path.startswith(FLEET)
        return for_nodes and not (self._closed and path.rstrip("/") in REGISTERING)


def is_inside(scope: Scope) -> bool:
    """Return whether a connection comes from this machine, and nobody says it was passed on."""
    if any(name.lower() in FORWARDED for name, _ in scope.get("headers", ())):
        return False
    client, server = scope.get("client"), scope.get("server")
    if client is None:  # a Unix socket has a path, and no port; else nobody knows who it is
        return server is not None and server[1] is None
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


async def refuse(send: Send, status: int, reason: str) -> None:
    """Answer with a status and one line that says why."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = json.dumps({"detail": reason}).encode()
    await send({"type": "http.response.body", "body": body})
