"""Refuses a large request that no registered node has signed, before the server reads its body.

Flower and this project's own calls read a whole request into memory. So

- each call has a largest body: only calls that push a reply may have a large one;
- a large body must be signed by a registered node. The compact calls of
  `edgewire.deploy.server.api` check the signature themselves: it is at the start of their body;
- all large bodies together may take a quarter of the memory that is free when the server starts. A
  single body may take half of that, and several of one node an eighth. A further request waits: the
  server does not read it, so its sender stops sending. While no other body arrives, a single body
  may have 256 MB (`LEAST`) in any case, so that a server with 1 GB takes models of 200 MB.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from google.protobuf.message import Message
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse

from edgewire.deploy.device.telemetry import MOST as TELEMETRY
from edgewire.deploy.server.access import FLEET, LIMIT, App, Scope, Send
from edgewire.deploy.signed_header import LONGEST, PROCESS
from edgewire.machine.surroundings import free_memory

SMALL = 1 << 16  # bytes of the largest body of a call that is not listed in `LARGEST`
COMPACT_CALLS = f"{FLEET}edgewire/compact/"
LARGEST = {
    f"{COMPACT_CALLS}pull": LONGEST + PROCESS + TELEMETRY,
    f"{COMPACT_CALLS}push": LIMIT,
    f"{FLEET}push-messages": 1 << 23,  # the names of 65,536 objects
    f"{FLEET}push-object": LIMIT,
}
LEAST = 1 << 28  # bytes that a single body may have on any server
BUDGET_WAIT = 50.0  # seconds that a request waits for memory: less than a node waits to send


class BodyBudget:
    """The memory for large bodies that the server receives at the same time.

    `total`: bytes; None: a quarter of the memory that is free now.
    """

    def __init__(self, total: int | None = None) -> None:
        self._total = total or (free_memory() or LIMIT) // 4
        self._held = Counter[int]()  # node id -> bytes
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def held(self, node: int, size: int) -> AsyncIterator[None]:
        """Hold memory for a body of a node, `size` bytes, within this context.

        Raises `HTTPException` 413 for a body that never fits, and 503 if none fits for some time.
        """
        most = max(self._total // 2, LEAST)
        if size > most:
            raise HTTPException(413, f"this server takes at most {most} bytes in a request")
        async with self._freed:
            try:
                async with asyncio.timeout(BUDGET_WAIT):
                    await self._freed.wait_for(lambda: self._fits(node, size))
            except TimeoutError as error:
                raise HTTPException(503, "the server is receiving too much: try again") from error
            self._held[node] += size
        try:
            yield
        finally:
            async with self._freed:
                self._held[node] -= size
                self._held += Counter()  # drops the nodes that hold nothing
                self._freed.notify_all()

    def _fits(self, node: int, size: int) -> bool:
        own = self._held[node]
        within = self._held.total() + size <= self._total
        return not self._held or (within and (not own or own + size <= self._total // 8))


class SignedUploads:
    """Wraps an ASGI app: requests to the Fleet API with a body that is too large are refused.

    The status is 411 for a body of unknown length, 413 for a body above the call's limit, 401 for a
    large body that no registered node has signed, and 503 if there is no memory for it.
    """

    def __init__(self, app: App, budget: BodyBudget) -> None:
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request that is allowed; refuse any other before its body is read."""
        path = scope["path"] if scope["type"] == "http" else ""
        if not path.startswith(FLEET):
            await self._app(scope, receive, send)
            return
        most, length = LARGEST.get(path, SMALL), length_of(scope)
        try:
            if length is None or length > most:
                text = f"this request says how long it is, and has at most {most} bytes"
                raise HTTPException(411 if length is None else 413, text)
            if length <= SMALL or path.startswith(COMPACT_CALLS):
                await self._app(scope, receive, send)
            else:
                node = await expect_known(Request(scope, receive))
                async with self._budget.held(node, length):
                    await self._app(scope, receive, send)
        except HTTPException as error:
            refusal = JSONResponse({"detail": error.detail}, error.status_code)
            await refusal(scope, receive, send)


def length_of(scope: Scope) -> int | None:
    """Return the length of a request's body in bytes; None if it is not stated."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() and b"transfer-encoding" not in headers else None


async def expect_known(request: Request) -> int:
    """Return the id of the registered node that has signed a request's headers.

    Raises `HTTPException` if there is none.
    """
    unknown = HTTPException(401, "a large request, and not of a known node")
    try:
        key = b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""))
    except ValueError as error:
        raise unknown from error
    node: int | None = get_linkstate(request).get_node_id_by_public_key(key) if key else None
    if node is None:
        raise unknown
    copy = Request(dict(request.scope, state={}))  # the app must not see this node
    await expect_signed(copy, PullMessagesRequest(node=Node(node_id=node)))
    return node


async def expect_signed(request: Request, claimed: Message) -> None:
    """Let Flower check that the node in `claimed`, a protobuf message, has signed the request."""
    request.state.protobuf_request = claimed
    await run_in_threadpool(authenticate_node, request)
