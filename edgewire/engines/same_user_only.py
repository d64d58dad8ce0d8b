"""Starts Flower's SuperLink so that it serves only the user who has started it.

A SuperLink does not authenticate local clients. So any user of the machine could list runs, read
their logs and stop them. Any user could also submit a run, which would execute as the SuperLink's
user. On Linux, the file /proc/net/tcp names the user of each local connection. This module
checks that user at each request. Flower starts SuperExec and the ServerApp as the same user.

This file is run as a script, by its path. So it imports no module of this project.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

TABLE = Path("/proc/net/tcp")
_ESTABLISHED = "01"  # in other states the table may lack the user
Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


def can_tell() -> bool:
    """Return whether this system tells which user has opened a local connection."""
    return sys.platform == "linux" and os.access(TABLE, os.R_OK)


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the id of the user whose process is the client of a local IPv4 connection.

    `client`, `server`: the address and port of each end. None: the user is not known.
    """
    ends = [_as_in_table(client), _as_in_table(server)]
    for line in TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == ends and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None


def _as_in_table(end: tuple[str, int]) -> str:
    number = int.from_bytes(socket.inet_aton(end[0]), sys.byteorder)
    return f"{number:08X}:{end[1]:04X}"


def for_this_user(app: App) -> App:
    """Return an ASGI app that forwards requests of this user; any other gets status 403."""

    async def guarded(scope: Scope, receive: Any, send: Send) -> None:
        client, server = scope.get("client"), scope.get("server")
        own = client and server and user_of(client, server) == os.geteuid()
        if scope["type"] == "lifespan" or own:
            await app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"this SuperLink is another user's"})

    return guarded


def main() -> None:
    """Start a SuperLink with the options of the command line."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    guard: Any = for_this_user
    theirs = extensions.get_middleware
    if can_tell():
        extensions.get_middleware = lambda: (Middleware(guard), *theirs())
    flower_superlink()


if __name__ == "__main__":
    main()
