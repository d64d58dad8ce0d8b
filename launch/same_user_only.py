"""Flower's SuperLink, open to the user who has started it and to nobody else on the machine.

A SuperLink of its own accord asks nobody who they are: any user of the machine could list its runs,
read their logs and stop them, or submit one that is run as its owner. On Linux the system says
whose a connection within the machine is (/proc/net/tcp, as identd did), and here it is asked at
each request. SuperExec and the ServerApp, which Flower starts, are the same user's.

This file is run as a script, by its path: it imports nothing of ours.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

TABLE = Path("/proc/net/tcp")
_ESTABLISHED = "01"  # of what is closed already the table does not know the user
Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


def can_tell() -> bool:
    """Return whether this system says whose connections are."""
    return sys.platform == "linux" and os.access(TABLE, os.R_OK)


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user who holds the client's end of an IPv4 connection within this machine."""
    ends = [_as_in_table(client), _as_in_table(server)]
    for line in TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == ends and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None


def _as_in_table(end: tuple[str, int]) -> str:
    number = int.from_bytes(socket.inet_aton(end[0]), sys.byteorder)
    return f"{number:08X}:{end[1]:04X}"


class OwnUser:
    """Wraps an ASGI app: requests of other users get status 403."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or self._is_own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"this SuperLink is another user's"})
        else:
            await send({"type": "websocket.close"})

    def _is_own(self, scope: Scope) -> bool:
        client, server = scope.get("client"), scope.get("server")
        if client is None or server is None:
            return False
        return user_of(client, server) == os.geteuid()


def main() -> None:
    """Start a SuperLink by the words on the command line."""
    import flwr.superlink.main
    from flwr.superlink.cli.flower_superlink import flower_superlink

    superlink: Any = flwr.superlink.main
    create = superlink.create_app

    def create_guarded(*args: Any) -> Any:
        app = create(*args)
        app.add_middleware(OwnUser)
        return app

    superlink.create_app = create_guarded
    flower_superlink()


if __name__ == "__main__":
    main()
