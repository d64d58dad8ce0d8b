"""Serves the page of a run and its state, on the loopback address only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgewire.report.errors import ResultsError
from edgewire.report.live.run_watcher import FolderWatcher, RunWatcher

ADDRESS = "127.0.0.1"
# A page of another site may have a name that leads to this address. Its requests have that name.
HOSTS = (ADDRESS, "localhost")
HERE = Path(__file__).parent
HEAD = 5.0  # seconds within which a connection must have sent the head of a request
MOST = 50  # connections; one more ends the oldest


class Connection(H11Protocol):
    """A connection of uvicorn's server that a slow client cannot hold: it has a single request.

    It ends without the whole head of a request after `HEAD` seconds, and if `MOST` newer
    connections are open. So others get their answers, however many connections a client opens.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head."""
        super().connection_made(transport)
        self.opened = self.loop.time()
        self._timer = self.loop.call_later(HEAD, self._end_without_head)
        if len(self.connections) > MOST:
            min(self.connections, key=lambda each: getattr(each, "opened", 0.0)).transport.abort()

    def _end_without_head(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._timer.cancel()
        super().connection_lost(exc)


class AsciiJson(JSONResponse):
    """JSON in ASCII: a name may hold half of a surrogate pair, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def page() -> tuple[str, str]:
    """Return the page, with its style and its script inside; and its Content-Security-Policy."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    text = (HERE / "page.html").read_text(encoding="utf-8")
    text = text.replace("/* page.css */", style).replace("/* page.js */", script)
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def app(watcher: RunWatcher | FolderWatcher) -> Starlette:
    """Return the ASGI app: the page at `/`, the run's state as JSON at `/state`.

    All other requests get an error: other paths, other methods than GET, other hosts than this one.
    """
    text, policy = page()

    def show(request: Request) -> Response:
        return HTMLResponse(text)

    def state(request: Request) -> Response:
        have = request.query_params
        return AsciiJson(watcher.look(have.get("history", ""), have.get("nodes", "")))

    async def guarded(
        request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await answer(request)
        response.headers.update(
            {
                "Content-Security-Policy": policy,
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
                "Connection": "close",
                "Referrer-Policy": "no-referrer",
                "Cross-Origin-Resource-Policy": "same-origin",
            }
        )
        return response

    return Starlette(
        routes=[Route("/", show), Route("/state", state)],
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=guarded),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=3),
        ],
    )


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of the loopback address; 0: any free port.

    Raises `ResultsError` if the port cannot be used.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen()
    except (OSError, OverflowError) as error:
        found.close()
        why = getattr(error, "strerror", None) or error
        raise ResultsError(f"--port {port}: {why}; --port 0 takes a free port") from error
    return found


def serve(watcher: RunWatcher | FolderWatcher, listening: socket.socket) -> None:
    """Answer requests until a signal ends this process."""
    server(watcher).run(sockets=[listening])


def server(watcher: RunWatcher | FolderWatcher) -> uvicorn.Server:
    """Return the server of a run's page."""
    return uvicorn.Server(
        uvicorn.Config(
            app(watcher), log_level="error", access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16384, http=Connection,
        )
    )  # fmt: skip
