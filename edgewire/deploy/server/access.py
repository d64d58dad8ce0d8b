"""Access control for a SuperLink: other machines reach only the API that nodes need.

A SuperLink serves three APIs on one port: the Fleet API for nodes, the Runtime API for the
ServerApp's process, and the Control API for users who start runs. The Control API has no
authentication. Anyone who reaches this API can start a run, and so run code on the server and on
every node. So only the Fleet API is open to other machines. If nodes have keys, Flower closes the
calls of that API that register nodes (`--enable-supernode-auth`).

A client is local if it connects from this machine, through 127.0.0.1 or ::1. So every user of the
machine is local. A header that claims a local origin is not trusted. A request with one of the
headers that proxies add (`FORWARDED`) always counts as remote. If a proxy on this machine adds none
of these headers, all its clients count as local. So configure such a proxy to forward only
`/v1/fleet/`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

LIMIT = 2 << 30  # bytes of the largest request: a message with its objects
FLEET = "/v1/fleet/"
_ORIGINS = "forwarded via x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip"
FORWARDED = frozenset(name.encode() for name in f"{_ORIGINS} true-client-ip x-client-ip".split())


class LocalOnly:
    """Wraps an ASGI app: a remote request for anything but the API for nodes gets status 403."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request that is local, or a call of nodes; refuse any other."""
        for_nodes = scope["type"] == "http" and scope["path"].startswith(FLEET)
        if scope["type"] == "lifespan" or for_nodes or is_inside(scope):
            await self._app(scope, receive, send)
        else:
            refusal = JSONResponse({"detail": "this is for the server's own machine"}, 403)
            await refusal(scope, receive, send)


def is_inside(scope: Scope) -> bool:
    """Return whether a request comes from this machine, without a proxy's headers."""
    if any(name.lower() in FORWARDED for name, _ in scope.get("headers", ())):
        return False
    host, _ = scope.get("client") or ("", 0)
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
