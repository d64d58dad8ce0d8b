"""Handles large bodies beside the event loop, so that other requests do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from io import BytesIO
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from edgewire.deploy.server.access import Scope, Send

PIECE = 1 << 16  # bytes of a response that are sent at once
WORKERS = 2  # calls at a time: each keeps the event loop waiting for Python's global lock
Result = TypeVar("Result")


class LargeBodies:
    """The work on the large bodies of one event loop."""

    def __init__(self) -> None:
        self._workers = asyncio.Semaphore(WORKERS)

    async def work(self, call: Callable[..., Result], *given: Any, size: int = PIECE + 1) -> Result:
        """Return the result of a call that may take long; it runs in a thread.

        `size`: the bytes that the call goes through, if its time depends on nothing else. With few,
        it runs here, because a change of threads takes longer.
        """
        if size <= PIECE:
            return call(*given)
        async with self._workers:
            try:
                return await run_in_threadpool(call, *given)
            except Exception as error:  # its frames hold the body, until a garbage collection
                raise error.with_traceback(None) from error.__cause__

    async def joined(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Return a request's body, given its pieces; only one copy is in memory at any time."""
        found = BytesIO()
        async for piece in pieces:
            found.write(piece)
        return found.getvalue()


class LargeResponse(Response):
    """A response with the body `parts`, sent in pieces as fast as its client reads them.

    A small one is sent at once: a piece of its own would be a packet of its own.
    """

    def __init__(self, parts: Sequence[bytes], **options: Any) -> None:
        super().__init__(**options)
        size = sum(map(len, parts))
        self.headers["content-length"] = str(size)
        self._parts = parts if size > PIECE else [b"".join(parts)]

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Send the response."""
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        for part in self._parts:
            view = memoryview(part)
            for start in range(0, len(part), PIECE):
                piece = view[start : start + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if len(piece) == PIECE:
                    await asyncio.sleep(0)  # `send` alone would not let others run
        await send({"type": "http.response.body", "body": b"", "more_body": False})
