"""Connections that are too slow, say too much, or nothing: bounds before a request is a request.

uvicorn reads a request's head whole, however long it is, and waits for ever for who has connected
and sends nothing, breaks off in the middle, or does not read what it asked for. Here a head and
trailers have a length, a head has a time, a body and a response go on at some pace, and what comes
of a body whose request is answered already has a length. Of those that have not asked for anything
yet only the newest are kept. (The TLS handshake has 60 s, by asyncio itself.)
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

LONGEST_HEAD = 1 << 16  # bytes of a request's first line and headers; of its trailers
MOST_UNUSED = 1 << 26  # bytes of a body that come after the answer: of a request refused, say
HEAD_SECONDS = 20.0  # for a head, from the connection's start or its first byte on
STALLED_SECONDS = 60.0  # without a byte of a body that is awaited, or of a response that is taken
SLOWEST = 64  # bytes a second of a body, after a minute: a link of 1 kbit/s has twice as many
MOST_UNASKED = 256  # connections that have not asked for anything yet
LOOKS = 5.0  # seconds between two looks at each connection
_Unasked = WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[BoundedProtocol, None]"]


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with these bounds."""

    _unasked: ClassVar[_Unasked] = WeakKeyDictionary()  # by the server's loop, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take note of a connection; of too many that ask nothing the oldest ends."""
        super().connection_made(transport)
        self._head_bytes = 0  # that came of a head, or of trailers: since a body's last byte
        self._in_head, self._in_body, self._begun = True, False, True
        self._body_bytes, self._unused, self._buffered = 0, 0, 0
        self._since = self._moved = time.monotonic()  # the part's beginning; its last byte
        self._look = self.loop.call_later(LOOKS, self._looked)
        unasked = self._unasked.setdefault(self.loop, {})
        unasked[self] = None
        if len(unasked) > MOST_UNASKED:
            oldest = next(iter(unasked))
            del unasked[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._look.cancel()
        self._asked()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless there is too much."""
        if self.transport.is_closing():  # by TLS more comes until the other has said goodbye
            return
        self._moved = time.monotonic()
        self._head_bytes += len(data)
        # the newest piece may be the head's end and a body: its length is looked at when read
        if self._head_bytes - len(data) > LONGEST_HEAD:
            part = "head is" if self._in_head else "trailers are"
            self._refuse(431, f"the request's {part} too long")
        elif self._unused > MOST_UNUSED:
            self.transport.abort()
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Begin with a head."""
        self._since, self._begun = time.monotonic(), True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of a head; trailers are dropped: nobody here looks at them."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin with a request."""
        self._asked()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > LONGEST_HEAD:
            self._refuse(431, "the request's head is too long")
        self._in_head, self._in_body, self._head_bytes, self._begun = False, True, 0, False
        self._body_bytes, self._unused, self._since = 0, 0, time.monotonic()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a request's body."""
        self._head_bytes = 0
        self._body_bytes += len(body)
        if not self.transport.is_closing():  # else the request was refused
            if self.cycle.response_complete:
                self._unused += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request: the next thing is another one's head."""
        self._in_head, self._in_body, self._head_bytes = True, False, 0
        if not self.transport.is_closing():
            super().on_message_complete()

    def _asked(self) -> None:
        self._unasked.get(self.loop, {}).pop(self, None)

    def _looked(self) -> None:
        """Look whether it goes on, every few seconds."""
        now = time.monotonic()
        self._look = self.loop.call_later(LOOKS, self._looked)
        left = self.transport.get_write_buffer_size()
        if left and left != self._buffered:  # what is sent is being taken
            self._moved = now
        self._buffered = left
        if self._is_over(now, left):
            self.transport.abort()

    def _is_over(self, now: float, left: int) -> bool:
        """Return whether nothing more is to be waited for. `left`: bytes of a response to send."""
        if left:
            return now - self._moved > STALLED_SECONDS
        if self.transport.is_closing():
            return True
        if self._in_body and not self.flow.read_paused:  # else it is the server that does not read
            slow = self._body_bytes < (now - self._since - STALLED_SECONDS) * SLOWEST
            return slow or now - self._moved > STALLED_SECONDS
        answered = self.cycle is None or self.cycle.response_complete
        return self._begun and answered and now - self._since > HEAD_SECONDS

    def _refuse(self, status: int, reason: str) -> None:
        """Answer, where no answer has begun, and end the connection."""
        if self._in_head:
            free = self.cycle is None or self.cycle.response_complete  # the request before
        else:
            free = not self.pipeline and not self.cycle.response_started
        if not free:
            self.transport.abort()
            return
        if self._in_body:  # which is awaited, perhaps
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        lines = [
            STATUS_LINE[status].rstrip(b"\r\n"),
            b"content-type: text/plain; charset=utf-8",
            b"content-length: %d" % len(reason),
            b"connection: close",
            b"",
            reason.encode(),
        ]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
        self.loop.call_later(1.0, self.transport.abort)  # TLS would wait for the other's goodbye


def uvicorn_options() -> dict[str, Any]:
    """Return what makes uvicorn keep to these bounds; nobody asks for websockets here."""
    return {"http": BoundedProtocol, "ws": "none"}
