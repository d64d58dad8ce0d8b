"""Refuses a large request to the Fleet API before reading it, unless a registered node signed it.

Flower and this project's own calls read a whole request before they authenticate the sender. So
anyone who reaches the port could fill the server's memory. The compact calls of
`deploy.server.api`, which take fewer bytes, are an exception. Their signature is at the start of
the body, and the server checks the signature before it reads the rest.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from deploy.server.access import FLEET, LIMIT, App, Scope, Send, refuse

SMALL = 1 << 16  # bytes that anyone may send: enough for Flower's calls without contents
COMPACT_CALLS = f"{FLEET}edgewire/compact/"


class SignedUploads:
    """Wraps an ASGI app: large requests to the Fleet API get status 401 unless they are signed.

    A large signed request gets status 411 if it does not state its length. It gets status 413 if
    its length exceeds 2 GB (`LIMIT`).
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request that is allowed; refuse any other before its body is read."""
        if is_large(scope):
            try:
                await expect_known(Request(scope, receive))
            except HTTPException as error:
                await refuse(send, error.status_code, "a large request, and not of a known node")
                return
            if (length := length_of(scope)) is None or length > LIMIT:
                text = f"a request says how long it is, and has at most {LIMIT} bytes"
                await refuse(send, 411 if length is None else 413, text)
                return
        await self._app(scope, receive, send)


def is_large(scope: Scope) -> bool:
    """Return whether a request's sender must be authenticated before its body is read."""
    if scope["type"] != "http" or not scope["path"].startswith(FLEET):
        return False
    if scope["method"] == "GET" or scope["path"].startswith(COMPACT_CALLS):
        return False
    length = length_of(scope)
    return length is None or length > SMALL


def length_of(scope: Scope) -> int | None:
    """Return the length of a request's body in bytes; None if it is not stated."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() and b"transfer-encoding" not in headers else None


async def expect_known(request: Request) -> None:
    """Raise `HTTPException` unless a request's headers hold a registered node's signature."""
    try:
        key = b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""))
    except ValueError as error:
        raise HTTPException(401) from error
    node = get_linkstate(request).get_node_id_by_public_key(key) if key else None
    if node is None:
        raise HTTPException(401)
    signed = Request(dict(request.scope, state={}))  # a copy: the app must not see this node
    signed.state.protobuf_request = PullMessagesRequest(node=Node(node_id=node))
    await run_in_threadpool(authenticate_node, signed)
