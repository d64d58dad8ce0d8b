"""Handles large bodies beside the event loop, so that other requests do not wait for them.

To join, parse, hash or send a body of 45 MB at once would take up to a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from edgewire.deploy.server.access import Scope, Send

PIECE = 1 << 16  # bytes of a response that are sent at once
WORKERS = 4  # the most calls at a time: more threads would keep the event loop waiting
SENDERS = 16  # the most pieces that are sent in one pass of the event loop
Result = TypeVar("Result")


class LargeBodies:
    """The work and the responses of one event loop."""

    def __init__(self) -> None:
        self._workers, self._senders = asyncio.Semaphore(WORKERS), asyncio.Semaphore(SENDERS)

    async def work(self, call: Callable[..., Result], *given: Any) -> Result:
        """Return the result of a call that may take long; it runs in a thread."""
        async with self._workers:
            return await run_in_threadpool(call, *given)

    async def joined(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Return a request's body, given its pieces."""
        found = [piece async for piece in pieces if piece]
        return found[0] if len(found) == 1 else await self.work(b"".join, found)

    def response(self, parts: Sequence[bytes], **options: Any) -> Response:
        """Return a response with these parts as its body; `options`: those of `Response`."""
        return _InPieces(self._senders, parts, **options)


class _InPieces(Response):
    """A response that is sent in pieces, as fast as the client reads them."""

    def __init__(self, senders: asyncio.Semaphore, parts: Sequence[bytes], **options: Any) -> None:
        super().__init__(**options)
        self._senders, self._parts = senders, parts
        self.headers["content-length"] = str(sum(map(len, parts)))

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Send the response. A client that is slow to read it stops only this response."""
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for number, piece in enumerate(_pieces(self._parts)):
            if number:
                async with self._senders:
                    await asyncio.sleep(0)  # `send` alone would not let others run
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _pieces(parts: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    """Return the parts in pieces of at most `PIECE` bytes; small parts are joined."""
    small, size = list[bytes](), 0
    for part in parts:
        if size + len(part) > PIECE:
            yield b"".join(small)
            small, size = [], 0
        if len(part) > PIECE:
            view = memoryview(part)
            yield from (view[start : start + PIECE] for start in range(0, len(view), PIECE))
        else:
            small.append(part)
            size += len(part)
    yield b"".join(small)
