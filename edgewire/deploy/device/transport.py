"""Pulls messages and pushes replies, with one request each, or with Flower's own calls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger

import httpx
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

from edgewire.deploy.device.client import LARGEST, FleetClient
from edgewire.protocol.bundle import parts_of

REQUEST, CONFIRM = "request", "confirm"  # names of the first and the last part of a reply's bundle
# Polling, if the server cannot hold a pull: shortest and longest pause (seconds), growth.
_EAGER, _IDLE, _GROWTH = 0.05, 3.0, 1.3
_SOON, _LATE = 0.02, 1.0  # seconds: first and longest pause before a missing object is pulled again
_AT_ONCE = 4  # objects that are sent in parallel
log = getLogger("edgewire")


class ObjectGone(Exception):
    """The server no longer has an object of a message."""


class Transport:
    """Pulls messages and pushes replies. Every call may raise the errors of `FleetClient`."""

    def __init__(self, fleet: FleetClient) -> None:
        self._fleet = fleet
        self._pause = _EAGER
        self._bundles = False
        self._came: dict[str, bytes] = {}

    def begin(self) -> bool:
        """Ask the server which calls it offers; return whether it is this project's server."""
        self._bundles = self._fleet.bundles()
        if not self._bundles:
            log.warning("the server has no bundled calls: plain Fleet calls, which are slower")
        return self._bundles

    def pull(self, node: ProtoNode, telemetry: bytes = b"") -> PullMessagesResponse | None:
        """Wait for the next message and return it; return None if none arrives for some time.

        `telemetry`: sent by a bundled call only.
        """
        request = PullMessagesRequest(node=node)
        if self._bundles:
            response, self._came = self._fleet.pull(request, telemetry)
        else:
            response = self._fleet.call(request, PullMessagesResponse)
        if response.messages_list:
            self._pause = _EAGER
            return response
        if not self._bundles:
            time.sleep(self._pause)
            self._pause = min(self._pause * _GROWTH, _IDLE)
        return None

    def objects(self, response: PullMessagesResponse, node: ProtoNode) -> dict[str, bytes]:
        """Return all objects of a message by their ids; pull those that have not arrived yet.

        Raises `ObjectGone` if the server no longer has an object.
        """
        run = response.messages_list[0].metadata.run_id
        needed = ids_of(response.message_object_trees[0])
        came, self._came = self._came, {}
        missing = [each for each in needed if each not in came]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            pulled = pool.map(lambda each: self._object(node, run, each), missing)
            return {**came, **dict(zip(missing, pulled, strict=True))}

    def push(self, bundle: bytes) -> None:
        """Send a reply with its objects, and confirm the message that it answers.

        The call may be repeated: the server ignores a reply that it already has.
        """
        if self._bundles:
            self._fleet.push(bundle)
            return
        (_, head), *objects, (_, last) = parts_of(bundle, LARGEST)
        request = PushMessagesRequest.FromString(head)
        response = self._fleet.call(request, PushMessagesResponse)
        if wanted := set(response.objects_to_push):
            needed = [each for each in objects if each[0] in wanted]
            self._push_objects(request, response.session_id, needed)
        else:
            # An earlier attempt was interrupted. The server has the reply and does not ask for its
            # objects again, but some objects may be missing. So send all of them. Flower's server
            # accepts missing objects in a request without a session.
            self._push_objects(request, "", objects)
        confirm = ConfirmMessageReceivedRequest.FromString(last)
        self._fleet.call(confirm, ConfirmMessageReceivedResponse)

    def _object(self, node: ProtoNode, run: int, name: str) -> bytes:
        pause = _SOON
        while True:
            request = PullObjectRequest(node=node, run_id=run, object_id=name)
            response = self._fleet.call(request, PullObjectResponse)
            if response.object_available:
                return response.object_content
            if not response.object_found:
                raise ObjectGone(name)
            time.sleep(pause)  # the message has arrived at the server before its objects
            pause = min(pause * 2, _LATE)

    def _push_objects(
        self, reply: PushMessagesRequest, session: str, objects: list[tuple[str, bytes]]
    ) -> None:
        """Send a reply's objects: the reply itself last, so that it arrives after all others."""
        # In parallel, because Flower's grid waits one second for objects that arrive late.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            stored = list(pool.map(lambda each: self._stored(reply, session, *each), objects[:-1]))
        if not all([*stored, self._stored(reply, session, *objects[-1])]) and session:
            raise httpx.RemoteProtocolError("the server has not stored an object of the reply")

    def _stored(self, reply: PushMessagesRequest, session: str, name: str, content: bytes) -> bool:
        """Send an object; return whether the server needed it."""
        request = PushObjectRequest(
            node=reply.node,
            run_id=reply.messages_list[0].metadata.run_id,
            object_id=name,
            object_content=content,
            session_id=session,
        )
        return self._fleet.call(request, PushObjectResponse).stored


def ids_of(tree: ObjectTree) -> list[str]:
    """Return the ids of an object and of all objects within it, each once."""
    return list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
