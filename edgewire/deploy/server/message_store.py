"""Stores messages with their objects in a SuperLink's state, and loads them.

Flower has one handler for each kind of HTTP request. This module calls these handlers for messages.
It takes objects from Flower's state itself, and stores them there, because protobuf would copy each
object twice while the event loop waits for Python's lock.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable import inflatable_object as inflatable
from flwr.superlink.servicer.fleet import fleet_handlers as fleet
from flwr.superlink.servicer.runtime import runtime_handlers as runtime

from edgewire.deploy.device.app_runner import refused
from edgewire.deploy.device.transport import ids_of
from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.incomplete_replies import IncompleteReplies
from edgewire.deploy.server.node_processes import NodeProcesses
from edgewire.protocol.bundle import MOST_PARTS, parts_of

_registering = Lock()


@dataclass
class Load:
    """The result of a pull: Flower's response with a message, and the message's objects.

    `missing`: the ids of the objects that have not arrived; `objects`: id -> content of the others,
    children first.
    """

    response: PullMessagesResponse
    missing: list[str]
    objects: dict[str, bytes] = field(default_factory=dict)

    def fetch(self, state: Any) -> None:
        """Load missing objects that have arrived; remove objects that will never arrive.

        Raises `FlowerError` if the run is over.
        """
        run, names = self.response.messages_list[0].metadata.run_id, self.missing
        self.missing = []
        for name in names:
            if content := state.object_store.get(name):
                state.store_traffic(run, bytes_sent=len(content), bytes_recv=0)
                self.objects[name] = content
                continue
            wanted = PullObjectRequest(run_id=run, object_id=name)
            if fleet.pull_object(wanted, state).object_found:
                self.missing.append(name)


def key_of(node_id: int, state: Any) -> bytes:
    """Return a node's public key; b"" for an unknown node."""
    found = state.get_node_info(node_ids=[node_id])
    return found[0].public_key if found else b""


def zipped_app(known: dict[str, bytes], request: GetFabRequest, state: Any) -> bytes:
    """Return Flower's response to a node that downloads an app, serialized and compressed by gzip.

    `known`: the responses by the apps' hashes; each is compressed once for all nodes.
    """
    found = fleet.get_fab(request, state)  # it checks the request
    if request.hash_str not in known:
        known[request.hash_str] = gzip.compress(found.SerializeToString(), mtime=0)
    return known[request.hash_str]


def mark_online(node_id: int, state: Any) -> None:
    """Mark a node as online, as a heartbeat does."""
    found = state.get_node_info(node_ids=[node_id])
    if found and found[0].heartbeat_interval > 0:
        state.acknowledge_node_heartbeat(node_id, found[0].heartbeat_interval)


def for_node(
    request: PullMessagesRequest, processes: NodeProcesses, state: Any, process: bytes = b""
) -> Load | None:
    """Return the next message for a node, with its objects; None if no message exists.

    A message that the node has pulled and not replied to is sent again first, because a node that
    pulls has not received it. `process`: the number of the node's process.
    """
    node = request.node.node_id
    processes.again(node, state, process)
    response = fleet.pull_messages(request, state, state.object_store)
    if not response.messages_list:
        return None
    processes.note(node, response.messages_list[0].metadata.message_id, process)
    load = Load(response, ids_of(response.message_object_trees[0]))
    try:
        load.fetch(state)
    except FlowerError:  # the run is over
        return None
    return load


def from_node(
    request: PushMessagesRequest,
    objects: Mapping[str, bytes],
    confirm: ConfirmMessageReceivedRequest | None,
    state: Any,
) -> PushMessagesResponse:
    """Store a node's reply and its objects.

    The reply is valid for as long as its message, whatever the node's clock says. If Flower refuses
    the first reply to a message, an error reply is stored: the node would repeat its reply.

    `confirm`: the node's confirmation of the answered message, or None. The response lists missing
    objects as `objects_to_push`, and the node pushes these one by one. Raises `FlowerError` if the
    run is over or unknown, and `ValueError` for a tree of objects that is not sound.
    """
    metadata = request.messages_list[0].metadata
    expect_known(metadata.run_id, state)
    question = state.message_ins_store.get(asked := metadata.reply_to_message_id)
    response = _registered(request, question, state)
    owed = question is not None and question.metadata.dst_node_id == metadata.src_node_id
    # The objects of a stored reply are asked for; a ServerApp may have taken the reply by now.
    stored = response.objects_to_push or asked in state.message_ins_id_to_message_res_id
    if owed and not stored:
        bundle = refused(question, ValueError("the server could not store the node's reply"))
        (_, head), *parts, _ = parts_of(bundle, len(bundle))
        request, objects = PushMessagesRequest.FromString(head), dict(parts)
        response = _registered(request, question, state)
    run = request.messages_list[0].metadata.run_id
    if size := _store(response, objects, run, state):
        state.store_traffic(run, bytes_sent=0, bytes_recv=size)
    if confirm is not None:
        fleet.confirm_message_received(confirm, state, state.object_store)
    return response


def _registered(request: PushMessagesRequest, question: Any, state: Any) -> PushMessagesResponse:
    """Let Flower store the reply to a message `question` (None: it is unknown)."""
    (reply,), (tree,) = request.messages_list, request.message_object_trees
    with _registering:  # else the store could change between the check and the call
        expect_sound(reply, tree, state.object_store)
        tree.CopyFrom(flat_tree(tree))
        reply.metadata.created_at = now = steady_clock.now().timestamp()
        if question is not None:
            reply.metadata.ttl = question.metadata.created_at + question.metadata.ttl - now
        return fleet.push_messages(request, state)


def flat_tree(tree: ObjectTree) -> ObjectTree:
    """Return a tree in which all other objects of a message are children of the message itself.

    The store keeps the children that the first tree with a name gives to it. So a node could give
    false children to an object that others send later, and 40 names could become 2 ** 40 objects.
    """
    below = [ObjectTree(object_id=each) for each in ids_of(tree) if each != tree.object_id]
    return ObjectTree(object_id=tree.object_id, children=below)


def expect_sound(reply: Message, tree: ObjectTree, store: Any) -> None:
    """Raise `ValueError` if a node's tree is not that of its reply, or holds another message.

    The hash (Flower's `Message.deflate`) shows that no other object is announced as a message.
    """
    for count, each in enumerate(inflatable.iterate_object_tree(tree)):
        if count == MOST_PARTS or not inflatable.is_valid_sha256_hash(each.object_id):
            raise ValueError(f"a message has at most {MOST_PARTS} objects, each named by a SHA-256")
    said = Message(metadata=reply.metadata, error=reply.error if reply.HasField("error") else None)
    said.metadata.message_id = ""
    body = said.SerializeToString(deterministic=True)
    below = "".join(each.object_id for each in tree.children[:1])
    name = inflatable.get_object_id(f"Message {below} {len(body)}\0".encode() + body)
    if not name == tree.object_id == reply.metadata.message_id:
        raise ValueError("the tree of objects is not that of the message")
    for each in [flat := flat_tree(tree), *flat.children]:
        kept = store.get_object_tree(each.object_id) if each.object_id in store else each
        if {one.object_id for one in kept.children} != {one.object_id for one in each.children}:
            raise ValueError("an object has other parts at the server")


def expect_known(run: int, state: Any) -> None:
    """If the run is unknown, raise the `FlowerError` that Flower raises for a finished run."""
    if not state.get_run_info(run_ids=[run]):
        raise FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, f"run {run} is unknown")


def for_server(
    request: PullAppMessagesRequest,
    arriving: IncompleteReplies,
    sends: Callable[[bytes], bool],
    state: Any,
    task: Any,
) -> list[tuple[str, bytes]] | None:
    """Return the replies to a ServerApp's messages that are ready; None if no reply is ready.

    They are Flower's response and the replies' objects, as parts of a bundle. The server forgets
    these objects.

    `arriving`: the incomplete replies; `sends`: returns whether the node with this public key is
    sending an object now; `task`: the ServerApp's task.
    """
    run, store = task.run_id, state.object_store
    with _registering:  # else the store could change between the check and the call
        ids = arriving.without(
            run, request.message_ids, state, lambda node: sends(key_of(node, state))
        )
        response = runtime.pull_messages(PullAppMessagesRequest(message_ids=ids), state, task)
        names = [name for tree in response.message_object_trees for name in ids_of(tree)]
        objects = {name: content for name in names if (content := store.get(name))}
        for each in response.messages_list:
            store.delete(each.metadata.message_id)
    return [("response", response.SerializeToString()), *objects.items()] if names else None


def from_server(
    request: PushAppMessagesRequest, objects: Mapping[str, bytes], state: Any, task: Any
) -> PushAppMessagesResponse:
    """Store a ServerApp's messages and their objects. A message's time to live begins now.

    The response lists missing objects as `objects_to_push`. `task`: the ServerApp's task.
    """
    for tree in request.message_object_trees:
        tree.CopyFrom(flat_tree(tree))
    for message in request.messages_list:
        message.metadata.created_at = steady_clock.now().timestamp()
    response = runtime.push_messages(request, state, task)
    _store(response, objects, task.run_id, state)
    return response


def _store(response: Any, objects: Mapping[str, bytes], run: int, state: Any) -> int:
    """Store the objects that the response asks for in `objects_to_push`; return their bytes.

    Afterwards that list names only the objects that are still missing.
    """
    asked, size = list(response.objects_to_push), 0
    del response.objects_to_push[:]
    for name in asked:
        content = objects.get(name, b"")
        if content and state.store_object(run, response.session_id, name, content):
            size += len(content)
        else:
            response.objects_to_push.append(name)
    return size
