"""Stores the registered nodes in a file, so that they survive a restart of the server.

The file keeps a revoked node that has a name. If another key is registered under this name, it gets
the id of the revoked node, and so its place in every run.

This replaces a SuperLink's database, which executes 240 statements per message. With small messages
these statements take most of a round's time. A run's rows would be useless after a restart, because
its ServerApp is gone, and a resumed run is a new run. So the SuperLink holds its state in memory,
and only the registered nodes and their ids are written to a file.
"""

from __future__ import annotations

import asyncio
import json
import platform
from pathlib import Path
from threading import Lock
from typing import Any

from flwr.proto.control_pb2 import RegisterNodeResponse
from flwr.proto.node_pb2 import NodeInfo
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from edgewire.deploy.device.node_database import write_file
from edgewire.deploy.server.access import App, Scope, Send
from edgewire.machine.errors import UsageError
from edgewire.protocol.flower_releases import installed

CHANGING = ("/v1/control/register-node", "/v1/control/unregister-node")
ONLINE, OFFLINE, GONE = "online", "offline", "unregistered"
_writing = Lock()  # `save` is called in several threads


class Registry:
    """Wraps a SuperLink's ASGI app: loads the nodes at the start, and saves every change."""

    def __init__(self, app: App, file: Path) -> None:
        self._app, self._file = app, file
        self._saving, self._changes, self._saved = asyncio.Lock(), 0, 0

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request; after a change of the nodes, save them before the response is sent.

        If they cannot be saved, the status is 507, and a registration is undone. A revoked key
        stays revoked until the next start.
        """
        if scope["type"] == "lifespan":
            restore(state_of(scope), self._file)
            keep_ids(state_of(scope))
        elif scope["type"] == "http" and scope["path"] in CHANGING:
            state = state_of(scope)
            held = list[Scope]()

            async def hold(message: Scope) -> None:
                held.append(message)

            await self._app(scope, receive, hold)
            try:
                await self._save(state)
            except OSError as error:
                if scope["path"] == CHANGING[0]:
                    undo(state, b"".join(each.get("body", b"") for each in held))
                said = f"{self._file} cannot be written: {error.strerror}"
                await JSONResponse({"detail": said}, 507)(scope, receive, send)
                return
            for message in held:
                await send(message)
            return
        await self._app(scope, receive, send)

    async def _save(self, state: Any) -> None:
        """Save a change of the nodes; changes that come during a save share the next one."""
        self._changes += 1
        change = self._changes
        async with self._saving:
            if self._saved < change:
                newest = self._changes
                await run_in_threadpool(save, state, self._file)
                self._saved = newest


def save(state: Any, file: Path) -> None:
    """Write the registered nodes of an in-memory state to the file, atomically.

    Raises `OSError` if the file cannot be written.
    """
    with _writing:
        with state.lock:
            known = state.node_public_key_to_node_id
            for each in state.nodes.values():
                # Flower stores the key of an unregistered node, and refuses to register it again.
                if each.status == GONE and known.get(each.public_key) == each.node_id:
                    del known[each.public_key]
            kept = [each for each in state.nodes.values() if each.status != GONE or each.name]
            nodes = [MessageToDict(each) for each in kept]
        write_file(file, json.dumps(nodes, indent=1).encode())


def undo(state: Any, response: bytes) -> None:
    """Revoke the node of the response to a registration; its name keeps its id."""
    number = RegisterNodeResponse.FromString(response).node_id
    with state.lock:
        if node := state.nodes.get(number):
            state.node_public_key_to_node_id.pop(node.public_key, None)
            node.status = GONE


def restore(state: Any, file: Path) -> None:
    """Load the registered nodes from a file, if it exists, into an in-memory state.

    Raises `UsageError` for a damaged file.
    """
    for node in load(file):
        if node.status == ONLINE:
            node.status, node.online_until = OFFLINE, 0.0
        _add(node, state)


def keep_ids(state: Any) -> None:
    """Let an in-memory state give a new node the id of the revoked node with the same name."""
    create = state.create_node

    def create_node(*given: Any, **options: Any) -> int:
        with state.lock:
            node = state.nodes[create(*given, **options)]
            same = (each for each in state.nodes.values() if each.status == GONE)
            if node.name and (before := next((s for s in same if s.name == node.name), None)):
                del state.nodes[node.node_id]
                state.owner_to_node_ids[node.owner_aid].remove(node.node_id)
                # A grid lists its nodes by the time of registration.
                node.node_id, node.registered_at = before.node_id, before.registered_at
            _add(node, state)
        return int(node.node_id)

    state.create_node = create_node


def _add(node: NodeInfo, state: Any) -> None:
    with state.lock:
        state.nodes[node.node_id] = node
        if node.status != GONE:
            state.node_public_key_to_node_id[node.public_key] = node.node_id
        state.owner_to_node_ids.setdefault(node.owner_aid, set()).add(node.node_id)


def load(file: Path) -> list[NodeInfo]:
    """Return the nodes in a file, [] for a missing file. Raises `UsageError` for a damaged file."""
    try:
        return [ParseDict(each, NodeInfo()) for each in json.loads(file.read_text())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, ParseError) as error:
        raise UsageError(f"{file} is damaged: move it away, and register nodes anew") from error


def status_of(public_key: bytes, state: Any) -> dict[str, Any]:
    """Return the status of the node with this public key, as JSON for the node.

    For a registered node the JSON holds the node's id, name ("": none) and status, that this server
    takes telemetry, and the versions of Flower and Python here.
    """
    number = state.get_node_id_by_public_key(public_key)
    found = [] if number is None else state.get_node_info(node_ids=[number])
    if not found:
        return {"registered": False}
    versions = {"flwr": installed(), "python": platform.python_version()}
    about = {"node": number, "name": found[0].name, "status": found[0].status, "telemetry": True}
    return {"registered": True, **about, **versions}


def called(node: int, state: Any) -> str:
    """Return what the log calls the node with this id: by its name, or else by its id."""
    found = state.get_node_info(node_ids=[node])
    return f"node {(found and found[0].name) or node}"


def state_of(scope: Scope) -> Any:
    """Return the SuperLink's state, from the ASGI scope of a request or of the lifespan."""
    return scope["app"].state.linkstate_factory.state()
