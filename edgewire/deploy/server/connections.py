"""Limits on connections: TLS handshakes, heads of requests, speed of bodies, idle connections.

A request's head is its first line and its headers. uvicorn reads a head of any length. It waits for
ever for a client that sends nothing, stops in the middle, or does not read its response.

The protocol here limits

- the length of a head and of trailers, and the time for a head;
- the speed of a body and of a response;
- the bytes of a body that arrive after the response;
- the number of connections without any request: it closes the oldest ones.

This protocol begins after the TLS handshake. So the event loop here limits the time of a handshake,
for which asyncio would wait 60 s, and the number of connections that are in one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from uvicorn.loops.auto import auto_loop_factory
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edgewire.deploy.sd_notify import READY, notify
from edgewire.deploy.server import certificate_file
from edgewire.deploy.server.certificate_file import CertificateFile

LONGEST_HEAD = 1 << 16  # bytes of a request's first line and headers; also of its trailers
MOST_UNUSED = 1 << 26  # bytes of a body that arrive after the response, as after a refusal
HEAD_SECONDS = 20.0  # for a head, from the connection's start or the head's first byte
STALLED_SECONDS = 60.0  # seconds without a new byte of a body or of a response
SLOWEST = 64  # bytes per second of a body, after a minute: half of a link of 1 kbit/s
MOST_UNASKED = 256  # the most connections that have sent no request yet
HANDSHAKE_SECONDS = 10.0  # for a TLS handshake: as long as a node waits for the server
MOST_OPENING = 2048  # the most connections in a TLS handshake: more than nodes that come at once
LOOKS = 5.0  # seconds between two checks of a connection


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with the limits of this module."""

    _unasked: ClassVar[dict[BoundedProtocol, None]] = {}  # without any request, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register a new connection.

        If more than `MOST_UNASKED` connections have no request, abort the oldest of these.
        """
        super().connection_made(transport)
        self._head_bytes = 0  # received bytes of this head, or of trailers
        self._in_head = self._begun = True
        self._body_bytes, self._unused, self._buffered = 0, 0, 0
        self._since = self._moved = time.monotonic()  # times: head or body began, last byte
        self._look = self.loop.call_later(LOOKS, self._looked)
        self._unasked[self] = None
        if len(self._unasked) > MOST_UNASKED:
            oldest = next(iter(self._unasked))
            del self._unasked[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._look.cancel()
        self._unasked.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; abort the connection if a head or a body is too long."""
        if self.transport.is_closing():  # TLS delivers data until the peer has closed too
            return
        self._moved = time.monotonic()
        self._head_bytes += len(data)
        # The newest piece may hold the end of the head and a body, so it is not counted.
        if self._head_bytes - len(data) > LONGEST_HEAD or self._unused > MOST_UNUSED:
            self.transport.abort()
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Store the time at which the head of a request begins to arrive."""
        self._since, self._begun = time.monotonic(), True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Forward a header of a head; drop trailers, which no app here uses."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request whose head is complete, unless the head is too long."""
        self._unasked.pop(self, None)
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > LONGEST_HEAD:
            self.transport.abort()
        self._in_head = self._begun = False
        self._head_bytes = 0
        self._body_bytes, self._unused, self._since = 0, 0, time.monotonic()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Forward a piece of a request's body."""
        self._head_bytes = 0
        self._body_bytes += len(body)
        if not self.transport.is_closing():
            if self.cycle.response_complete:
                self._unused += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Register the end of a request. The next bytes are the head of another request."""
        self._in_head, self._head_bytes = True, 0
        if not self.transport.is_closing():
            super().on_message_complete()

    def _looked(self) -> None:
        """Abort the connection if it makes no progress; runs every `LOOKS` seconds."""
        now = time.monotonic()
        self._look = self.loop.call_later(LOOKS, self._looked)
        left = self.transport.get_write_buffer_size()
        if left and left != self._buffered:  # the client reads the response
            self._moved = now
        self._buffered = left
        if self._is_over(now, left):
            self.transport.abort()

    def _is_over(self, now: float, left: int) -> bool:
        """Return whether to abort the connection.

        `now`: in seconds, as `time.monotonic`; `left`: unsent bytes of the response.
        """
        if left:
            return now - self._moved > STALLED_SECONDS
        if self.transport.is_closing():
            return True
        if not self._in_head and not self.flow.read_paused:  # if paused, the server does not read
            slow = self._body_bytes < (now - self._since - STALLED_SECONDS) * SLOWEST
            return slow or now - self._moved > STALLED_SECONDS
        answered = self.cycle is None or self.cycle.response_complete
        return self._begun and answered and now - self._since > HEAD_SECONDS


class _Accepted(asyncio.Protocol):
    """The protocol of a new connection: calls `take` with a socket of this connection."""

    def __init__(self, take: Callable[[socket.socket], object]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Pass the connection on, before any byte is read from it."""
        connection = transport.get_extra_info("socket").dup()
        transport.abort()  # this closes the other socket only
        self._take(connection)


def bounded_loop(files: tuple[Path, Path] | None = None) -> asyncio.AbstractEventLoop:
    """Return an event loop as uvicorn makes it, with limits on the TLS handshakes of its servers.

    `files`: the certificate, whose renewal is taken up (`CertificateFile`), and its key.
    A handshake ends after `HANDSHAKE_SECONDS`. If more than `MOST_OPENING` connections are in a
    handshake, the oldest one is closed. uvicorn does not know a connection before its handshake.
    """
    loop = auto_loop_factory()()
    listen: Any = loop.create_server
    opening = dict[socket.socket, asyncio.Task[None]]()

    async def handshake(connection: socket.socket, make: Any, tls: ssl.SSLContext) -> None:
        limit = {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
        try:
            await loop.connect_accepted_socket(make, connection, ssl=tls, **limit)
        except OSError:  # it failed or took too long
            connection.close()
        finally:
            opening.pop(connection, None)

    def take(connection: socket.socket, make: Any, tls: ssl.SSLContext) -> None:
        opening[connection] = loop.create_task(handshake(connection, make, tls))
        if len(opening) > MOST_OPENING:
            oldest = next(iter(opening))
            del opening[oldest]
            with suppress(OSError):  # the client has closed it
                oldest.shutdown(socket.SHUT_RDWR)

    def watch(file: CertificateFile) -> None:
        file.look()
        loop.call_later(certificate_file.LOOKS, watch, file)

    async def create_server(make: Any, *given: Any, ssl: Any = None, **options: Any) -> Any:
        if ssl is not None and files is not None:
            watch(CertificateFile(files, ssl))
        first = make if ssl is None else partial(_Accepted, partial(take, make=make, tls=ssl))
        listening = await listen(first, *given, **options)
        notify(READY)
        return listening

    loop.create_server = create_server  # type: ignore[method-assign, assignment]
    return loop


def uvicorn_options(files: tuple[Path, Path] | None = None) -> dict[str, Any]:
    """Return uvicorn's options for these limits; they switch unused websockets off."""
    loop = partial(bounded_loop, files)
    return {"http": BoundedProtocol, "ws": "none", "loop": loop}
