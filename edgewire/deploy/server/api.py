"""HTTP calls that this project adds to Flower's: long polling, and whole messages in one request.

    GET  /v1/fleet/edgewire               "1": this server has all of these calls
    GET  /v1/fleet/edgewire/status        JSON: what the server knows about the node that asks
    POST /v1/fleet/edgewire/compact/pull  wait for a node's next message; return it with its objects
    POST /v1/fleet/edgewire/compact/push  store a node's reply with its objects
    POST /v1/runtime/edgewire/pull        wait for replies to a ServerApp; return them with objects
    POST /v1/runtime/edgewire/push        store a ServerApp's messages with their objects
    GET  /v1/control/edgewire/fleet          JSON: a list of the registered nodes (`NodeState`)
    GET  /v1/control/edgewire/runs/RUN       JSON: the names and sizes of a run's files
    GET  /v1/control/edgewire/runs/RUN/FILE  one of these files, from byte `?start=` on

`edgewire.deploy.enrolment` adds calls that register the keys of new devices.

The body of a node's call begins with a signed header (`edgewire.deploy.signed_header`), which says
for how many seconds the server may hold a pull. Its bundles are compact
(`edgewire.deploy.compact_bundle`). In a pull the random number of the node's process follows
(`edgewire.deploy.server.node_processes`), and perhaps telemetry
(`edgewire.deploy.device.telemetry`). The response is empty if there is no message, or a bundle
with Flower's response as its first part, "response". If the node has not replied to its last
message, a pull returns that message again. A pull is also a heartbeat.

The body of a ServerApp's pull is Flower's request to pull messages. The header `edgewire-wait` says
for how many seconds the server may hold the pull. The response is a bundle
(`edgewire.protocol.bundle`).

The body of a push is a bundle with Flower's request as its first part, "request". The response is
Flower's. A node's push also confirms the message that it replies to.

A node is authenticated by its signature, and a ServerApp is authenticated by its token, as in
Flower. The other calls are open only to this machine (`edgewire.deploy.server.access`).

Flower's own calls work as before. Those of nodes with large bodies are answered here, by Flower's
handlers, because Flower would join, parse and send a whole body in its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import HTTPException
from flwr.proto import message_pb2
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.dependencies.task import authenticate_task
from flwr.supercore.error import http_error_translator
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.servicer.fleet import fleet_handlers as fleet
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from edgewire.deploy import compact_bundle
from edgewire.deploy.enrolment import Enrolment
from edgewire.deploy.monitoring.node_states import FleetStates
from edgewire.deploy.server import message_store
from edgewire.deploy.server.access import LIMIT, App, Scope, Send
from edgewire.deploy.server.incomplete_replies import IncompleteReplies
from edgewire.deploy.server.keyed_condition import KeyedCondition
from edgewire.deploy.server.large_bodies import LargeBodies, LargeResponse
from edgewire.deploy.server.node_processes import NodeProcesses
from edgewire.deploy.server.node_registry import keep_nodes, state_of, status_of
from edgewire.deploy.server.run_files import results_of
from edgewire.deploy.server.signed_uploads import SMALL, BodyBudget, expect_signed, length_of
from edgewire.deploy.server.task_processes import TaskProcesses
from edgewire.deploy.signed_header import LONGEST, PROCESS, SignedHeader, headers, read_header
from edgewire.protocol.bundle import MOST_PARTS, OF_MANY, frames, parts_of

OURS = "edgewire"
COMPACT = f"{OURS}-compact"
APP = "/v1/fleet/get-fab"
WAIT = f"{OURS}-wait"
USUAL_WAIT, LONGEST_WAIT = 20.0, 55.0  # seconds
# Seconds after which a waiting pull checks for new messages and replies, if no call wakes it.
NODE_LOOKS, SERVER_LOOKS = 5.0, 1.0
# Seconds: the wait for missing objects, and the first and the longest pause between two checks.
OBJECTS_WAIT, OBJECTS_LOOK, OBJECTS_LATE = 60.0, 0.01, 1.0
AT_A_TIME = 2  # parallel pushes of a node: one may be broken and not ended yet
OTHER_PUSH = "/v1/runtime/push-messages"  # Flower's own call of a ServerApp, without objects
# Lines of Flower's log for each reply, and for each look of run.py at the runs: 10 MB a day.
QUIET = ("[Fleet.PushMessages] Push replies", "ControlServicer.ListRuns")
PLAIN, PROTOBUF = "application/octet-stream", "application/protobuf"
Kind = TypeVar("Kind", bound=Protobuf)
Reader = Callable[[bytes, int, int], list[tuple[str, bytes]]]


class BundleApi:
    """Wraps a SuperLink's ASGI app, and answers this project's own calls.

    `output`: the folder that holds each run's folder of results.
    `budget`: the memory for the bodies of compact pushes. `states`: what is known of the nodes.
    `tidy`: is called in a thread with the SuperLink's state, when the server starts.
    `enrolment`: the tokens of new devices, and the file of registered nodes.
    """

    def __init__(
        self,
        app: App,
        output: Path,
        budget: BodyBudget,
        states: FleetStates,
        tidy: Callable[[Any], object] = bool,
        enrolment: Enrolment | None = None,
    ) -> None:
        self._app, self._output, self._budget, self._states = app, output, budget, states
        self._large, self._tidy, self._enrolment = LargeBodies(), tidy, enrolment
        self._bell, self._processes = KeyedCondition(), NodeProcesses()
        self._arriving = IncompleteReplies()
        self._sending = Counter[str]()  # public key of a node -> calls of `_flowers`
        self._pushing = Counter[int]()  # node id -> bundles that it is sending now
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", f"/v1/fleet/{OURS}"): self._hello,
            ("GET", f"/v1/fleet/{OURS}/status"): self._status,
            ("POST", f"/v1/fleet/{OURS}/compact/pull"): self._node_pulls,
            ("POST", f"/v1/fleet/{OURS}/compact/push"): self._node_pushes,
            ("POST", "/v1/fleet/push-messages"): self._other_node_pushes,
            ("GET", f"/v1/control/{OURS}/fleet"): self._fleet,
            ("POST", f"/v1/runtime/{OURS}/pull"): self._server_pulls,
            ("POST", f"/v1/runtime/{OURS}/push"): self._server_pushes,
            ("POST", OTHER_PUSH): self._server_pushes,
            ("POST", APP): partial(
                self._flowers, GetFabRequest, partial(message_store.zipped_app, {})
            ),
            ("POST", "/v1/fleet/push-object"): partial(
                self._flowers, message_pb2.PushObjectRequest, fleet.push_object
            ),
            ("POST", "/v1/fleet/pull-object"): partial(
                self._flowers, message_pb2.PullObjectRequest, fleet.pull_object
            ),
        }
        if enrolment is not None:
            online = partial(self._flowers, ActivateNodeRequest, enrolment.activate)
            self._routes |= enrolment.routes() | {("POST", "/v1/fleet/activate-node"): online}

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer this project's calls; forward any other request."""
        if scope["type"] == "lifespan":  # uvicorn would log a line for each request
            logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
            logging.getLogger("flwr").addFilter(lambda line: not str(line.msg).startswith(QUIET))
            TaskProcesses(state := state_of(scope))
            if self._enrolment is not None:
                keep_nodes(state, self._enrolment.nodes)
            threading.Thread(target=self._tidy, args=(state,), daemon=True).start()
        answer = self._route(scope) if scope["type"] == "http" else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await http_error_translator(request, answer)
        asks = getattr(request.state, "protobuf_request", None)  # Flower has authenticated its node
        if response.status_code == 200 and (node := getattr(asks, "node", None)) is not None:
            about = self._states.of(node.node_id)
            about.uplink_bytes += length_of(scope) or 0
            about.downlink_bytes += int(response.headers["content-length"])
        await response(scope, receive, send)

    def _route(self, scope: Scope) -> Callable[[Request], Awaitable[Response]] | None:
        found = self._routes.get((scope["method"], scope["path"]))
        if scope["path"] == APP and "gzip" not in Headers(scope=scope).get("accept-encoding", ""):
            return None  # a client of another kind
        if found is None and scope["path"].startswith(f"/v1/control/{OURS}/runs/"):
            return partial(results_of, self._output)
        return found

    async def _hello(self, request: Request) -> Response:
        return PlainTextResponse("1", headers={COMPACT: str(compact_bundle.FORM)})

    async def _status(self, request: Request) -> Response:
        asks = _read(ActivateNodeRequest, b"")
        with suppress(KeyError, ValueError):  # Flower refuses a request without a key below
            asks.public_key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER])
        await expect_signed(request, asks)
        state = get_linkstate(request)
        return JSONResponse(await run_in_threadpool(status_of, asks.public_key, state))

    async def _fleet(self, request: Request) -> Response:
        found = await run_in_threadpool(self._states.all, get_linkstate(request))
        return JSONResponse([asdict(each) for each in found])

    async def _node_pulls(self, request: Request) -> Response:
        signed, pieces = await _read_signed(request)
        rest = await self._large.joined(pieces)
        number, telemetry = rest[:PROCESS], rest[PROCESS:]
        node, state = signed.node_id, get_linkstate(request)
        if self._processes.is_ousted(node, number, state):
            raise HTTPException(409, "another node is online with this key")
        self._states.pulled(node, signed.stamp, telemetry)
        await run_in_threadpool(message_store.mark_online, node, state)
        wanted = PullMessagesRequest(node=Node(node_id=node))

        def look() -> Awaitable[message_store.Load | None]:
            return run_in_threadpool(message_store.for_node, wanted, self._processes, state, number)

        load = await self._bell.wait_for(
            ("node", node), look, min(signed.wait, LONGEST_WAIT), lambda: NODE_LOOKS, alone=True
        )
        if load is None:
            return Response(b"")
        until, pause = time.monotonic() + OBJECTS_WAIT, OBJECTS_LOOK
        while load.missing and time.monotonic() < until:
            await asyncio.sleep(pause)
            pause = min(pause * 2, OBJECTS_LATE)  # all nodes of a run may wait for one object
            await run_in_threadpool(load.fetch, state)
        parts = [("response", load.response.SerializeToString()), *load.objects.items()]
        size = sum(len(content) for _, content in parts)
        return LargeResponse(await self._large.work(compact_bundle.pieces, parts, size=size))

    async def _node_pushes(self, request: Request) -> Response:
        signed, pieces = await _read_signed(request)
        if self._pushing[signed.node_id] >= AT_A_TIME:
            raise HTTPException(429, "this node sends so many replies already")
        size = length_of(request.scope) or 0
        with _counted(self._pushing, signed.node_id):
            async with self._budget.held(signed.node_id, size) if size > SMALL else nullcontext():
                content = await self._large.joined(pieces)
                parts = await self._parts(content, MOST_PARTS, compact_bundle.parts_of)
                return await self._stored(request, parts, signed.node_id)

    async def _other_node_pushes(self, request: Request) -> Response:
        """Store a reply that a node has pushed by Flower's own call, by the rules of this module.

        The node pushes the reply's objects later, each by a call of its own.
        """
        body = await self._large.joined(request.stream())
        asks = await self._large.work(_read, PushMessagesRequest, body)
        await expect_signed(request, asks)
        return await self._stored(request, [("request", body)], asks.node.node_id)

    async def _stored(
        self, request: Request, found: list[tuple[str, bytes]], asks: int
    ) -> Response:
        """Store the reply of the node `asks`, given the parts of the reply's bundle."""
        parts = dict(found)
        head = parts.pop("request", b"")
        pushed = await self._large.work(_read, PushMessagesRequest, head, size=len(head))
        confirm = parts.pop("confirm", None)
        said = [pushed.node.node_id, *(m.metadata.src_node_id for m in pushed.messages_list[:2])]
        if said != [asks, asks] or len(pushed.message_object_trees) != 1:
            raise HTTPException(400, "a push holds one message, of the node that pushes it")
        confirmed = None if confirm is None else _read(ConfirmMessageReceivedRequest, confirm)
        state = get_linkstate(request)
        try:
            response = await self._large.work(
                message_store.from_node, pushed, parts, confirmed, state
            )
        except ValueError as error:
            raise HTTPException(400, f"this reply is not taken: {error}") from error
        reply = pushed.messages_list[0]
        self._states.replied(asks, reply.metadata.message_id, reply.HasField("error"))
        self._bell.ring(("run", reply.metadata.run_id))
        return Response(response.SerializeToString(), media_type=PROTOBUF)

    async def _flowers(
        self, kind: type[Kind], handler: Callable[[Kind, Any], Protobuf | bytes], request: Request
    ) -> Response:
        """Answer a node's call of Flower's API by its handler; a result in bytes is compressed."""
        with _counted(self._sending, request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER)):
            asks = await self._large.work(_read, kind, await self._large.joined(request.stream()))
            await expect_signed(request, asks)
            found = await self._large.work(handler, asks, get_linkstate(request))
        if isinstance(found, bytes):
            return LargeResponse([found], media_type=PROTOBUF, headers={"content-encoding": "gzip"})
        content = await self._large.work(found.SerializeToString)
        return LargeResponse([content], media_type=PROTOBUF)

    async def _server_pulls(self, request: Request) -> Response:
        state, task = get_linkstate(request), await _task(request)
        wanted = _read(PullAppMessagesRequest, await request.body())

        async def look() -> list[tuple[str, bytes]] | None:
            await _task(request)  # fails if the run has been stopped meanwhile
            return await run_in_threadpool(
                message_store.for_server, wanted, self._arriving, self._sends, state, task
            )

        def pause() -> float:
            return OBJECTS_LOOK if self._arriving.waits(task.run_id) else SERVER_LOOKS

        found = await self._bell.wait_for(("run", task.run_id), look, _seconds(request), pause)
        parts = found or [("response", b"")]
        size = sum(len(content) for _, content in parts)
        content = await self._large.work(frames, parts, size=size)
        return LargeResponse([content], media_type=PLAIN)

    def _sends(self, key: bytes) -> bool:
        """Return whether the node with this public key is sending an object now."""
        return self._sending[b64encode(key).decode()] > 0

    async def _server_pushes(self, request: Request) -> Response:
        state, task = get_linkstate(request), await _task(request)
        body = await self._large.joined(request.stream())
        flowers = request.scope["path"] == OTHER_PUSH
        parts = {"request": body} if flowers else dict(await self._parts(body, OF_MANY, parts_of))
        pushed = _read(PushAppMessagesRequest, parts.pop("request", b""))
        response = await self._large.work(message_store.from_server, pushed, parts, state, task)
        for node in {message.metadata.dst_node_id for message in pushed.messages_list}:
            self._bell.ring(("node", node))
        return Response(response.SerializeToString(), media_type=PROTOBUF if flowers else PLAIN)

    async def _parts(self, body: bytes, most: int, read: Reader) -> list[tuple[str, bytes]]:
        """Return a bundle's parts. Raises `HTTPException` for a malformed bundle."""
        try:
            return await self._large.work(read, body, LIMIT, most)
        except ValueError as error:
            raise HTTPException(400, f"this is no bundle: {error}") from error


async def _read_signed(request: Request) -> tuple[SignedHeader, AsyncIterator[bytes]]:
    """Return the signed header of a compact request, and the rest of its body in pieces.

    Raises `HTTPException` or Flower's error, without reading the rest of the body, unless a known
    node has signed the header.
    """
    pieces, first = request.stream(), b""
    async for piece in pieces:
        first += piece
        if len(first) >= LONGEST:
            break
    try:
        signed, rest = read_header(first)
    except ValueError as error:
        raise HTTPException(400, f"this is no compact request: {error}") from error
    key = await run_in_threadpool(message_store.key_of, signed.node_id, get_linkstate(request))
    flowers = Headers(headers(key, signed.stamp, signed.signature))
    authenticated = Request({**request.scope, "headers": flowers.raw})
    await expect_signed(authenticated, PullMessagesRequest(node=Node(node_id=signed.node_id)))

    async def others() -> AsyncIterator[bytes]:
        yield rest
        async for piece in pieces:
            yield piece

    return signed, others()


async def _task(request: Request) -> Any:
    """Return the task of the ServerApp that sends a request, after Flower has checked its token."""
    token = request.headers.get(TASK_TOKEN_HEADER)
    return await run_in_threadpool(authenticate_task, request, token, get_linkstate(request))


def _read(kind: type[Kind], content: bytes) -> Kind:
    try:
        found: Kind = kind.FromString(content)
    except DecodeError as error:
        raise HTTPException(400, f"this is no {kind.DESCRIPTOR.name}") from error
    return found


def _seconds(request: Request) -> float:
    """Return for how many seconds the server may hold a pull, from the request's header."""
    try:
        asked = float(request.headers.get(WAIT, USUAL_WAIT))
    except ValueError as error:
        raise HTTPException(400, f"{WAIT} is a number of seconds") from error
    return min(max(asked, 0.0), LONGEST_WAIT) if asked == asked else 0.0


@contextmanager
def _counted(counter: Counter[Any], key: Hashable) -> Iterator[None]:
    """Increase the key's count by one within this context."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]
