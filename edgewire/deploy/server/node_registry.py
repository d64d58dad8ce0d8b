"""Stores the registered nodes in a file, so that they survive a restart of the server.

The file keeps a revoked node that has a name. If another key is registered under this name, it gets
the id of the revoked node, and so its place in every run.

This replaces a SuperLink's database, which executes 240 statements per message. With small messages
these statements take most of a round's time. A run's rows would be useless after a restart, because
its ServerApp is gone, and a resumed run is a new run. So the SuperLink holds its state in memory,
and only the registered nodes and their ids are written to a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import HTTPException
from flwr.proto.node_pb2 import NodeInfo
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from edgewire.deploy.device.node_database import write_file
from edgewire.deploy.server.access import Scope
from edgewire.machine.errors import UsageError

ONLINE, OFFLINE, GONE = "online", "offline", "unregistered"
_writing = Lock()  # `save` is called in several threads


def keep_nodes(state: Any, file: Path) -> None:
    """Load the registered nodes from a file into an in-memory state, and save each change.

    A new node gets the id of the revoked node with the same name. A node that registers itself is
    saved with the next change. If a change cannot be saved, its call raises `HTTPException`, and a
    registration is undone; a revoked key stays revoked until the next start. Raises `UsageError`
    for a damaged file.
    """
    for node in load(file):
        if node.status == ONLINE:
            node.status, node.online_until = OFFLINE, 0.0
        _add(node, state)
    create, delete = state.create_node, state.delete_node
    themselves = set[int]()  # the nodes that have registered themselves

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
        if not node.heartbeat_interval:  # Flower's call of nodes says none
            themselves.add(node.node_id)
            return int(node.node_id)
        try:
            save(state, file)
        except HTTPException:
            with state.lock:
                state.node_public_key_to_node_id.pop(node.public_key, None)
                node.status = GONE
            raise
        return int(node.node_id)

    def delete_node(owner_aid: str, node_id: int) -> None:
        delete(owner_aid, node_id)
        if node_id not in themselves:
            save(state, file)

    state.create_node, state.delete_node = create_node, delete_node


def save(state: Any, file: Path) -> None:
    """Write the registered nodes of an in-memory state to the file, atomically.

    Raises `HTTPException` 507 if the file cannot be written.
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
        try:
            write_file(file, json.dumps(nodes, indent=1).encode())
        except OSError as error:
            raise HTTPException(507, f"{file} cannot be written: {error.strerror}") from error


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
    """Return what the node with this public key may know: its id here, and its name ("": none)."""
    number = state.get_node_id_by_public_key(public_key)
    found = [] if number is None else state.get_node_info(node_ids=[number])
    if not found:
        return {"registered": False}
    return {"registered": True, "node": number, "name": found[0].name}


def called(node: int, state: Any) -> str:
    """Return what the log calls the node with this id: by its name, or else by its id."""
    found = state.get_node_info(node_ids=[node])
    return f"node {(found and found[0].name) or node}"


def state_of(scope: Scope) -> Any:
    """Return the SuperLink's state, from the ASGI scope of a request or of the lifespan."""
    return scope["app"].state.linkstate_factory.state()
