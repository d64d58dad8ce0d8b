"""Stores the registered nodes in a file, so that they survive a restart; runs do not.

A SuperLink's database executes 240 statements a message, which is most of the time of a round with
small messages. A run's rows would be of no use after a restart: its ServerApp is gone, and a
resumed run is a new run. So the SuperLink's state is in memory, and this file holds the registered
nodes with their ids.
"""

from __future__ import annotations

import json
import os
import platform
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.proto.node_pb2 import NodeInfo
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.concurrency import run_in_threadpool

from deploy.server.access import App, Scope, Send
from protocol.flower_releases import installed
from simulation.errors import UsageError

KEPT = ("nodes", "node_public_key_to_node_id", "owner_to_node_ids", "lock")  # of Flower's state
CHANGING = ("/v1/control/register-node", "/v1/control/unregister-node")
log = getLogger("edgewire")
ONLINE, OFFLINE, GONE = "online", "offline", "unregistered"


class Registry:
    """Wraps a SuperLink's ASGI app: restores the nodes at its start, and saves every change."""

    def __init__(self, app: App, file: Path) -> None:
        self._app = app
        self._file = file
        self._keeps = True

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request; save a registration before its response is sent."""
        if scope["type"] == "lifespan":
            state = state_of(scope)
            self._keeps = all(hasattr(state, each) for each in KEPT)
            if self._keeps:
                restore(state, self._file)
            else:
                log.warning("this Flower keeps nodes otherwise: who is registered is not written")
        elif self._keeps and scope["type"] == "http" and scope["path"] in CHANGING:
            state = state_of(scope)

            async def noted(message: Scope) -> None:
                if message["type"] == "http.response.start":
                    await run_in_threadpool(save, state, self._file)
                await send(message)

            await self._app(scope, receive, noted)
            return
        await self._app(scope, receive, send)


def save(state: Any, file: Path) -> None:
    """Write the nodes of an in-memory state to the file, atomically.

    Raises `OSError`.
    """
    with state.lock:
        known = state.node_public_key_to_node_id
        for each in state.nodes.values():
            # Flower keeps an unregistered node's key, so the key could not be registered again.
            if each.status == GONE and known.get(each.public_key) == each.node_id:
                del known[each.public_key]
        nodes = [MessageToDict(each) for each in state.nodes.values() if each.status != GONE]
    partial = file.with_suffix(".part")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w") as text:
        json.dump(nodes, text, indent=1)
        text.flush()
        os.fsync(handle)
    os.replace(partial, file)


def restore(state: Any, file: Path) -> None:
    """Load the nodes of a file, if it exists, into an in-memory state.

    Raises `UsageError` for a damaged file.
    """
    for node in load(file):
        if node.status == ONLINE:
            node.status, node.online_until = OFFLINE, 0.0
        with state.lock:
            state.nodes[node.node_id] = node
            state.node_public_key_to_node_id[node.public_key] = node.node_id
            state.owner_to_node_ids.setdefault(node.owner_aid, set()).add(node.node_id)


def load(file: Path) -> list[NodeInfo]:
    """Return the nodes of a file, none if it is missing. Raises `UsageError` for a damaged file."""
    try:
        return [ParseDict(each, NodeInfo()) for each in json.loads(file.read_text())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, ParseError) as error:
        raise UsageError(f"{file} is damaged: move it away, and register nodes anew") from error


def status_of(public_key: bytes, state: Any) -> dict[str, Any]:
    """Return what the server knows of the node with a key, and its own versions if it knows it."""
    number = state.get_node_id_by_public_key(public_key)
    found = [] if number is None else state.get_node_info(node_ids=[number])
    if not found:
        return {"registered": False}
    versions = {"flwr": installed(), "python": platform.python_version()}
    return {"registered": True, "node": number, "status": found[0].status, **versions}


def state_of(scope: Scope) -> Any:
    """Return the SuperLink's state, given the ASGI scope of a request or of the start."""
    return scope["app"].state.linkstate_factory.state()
