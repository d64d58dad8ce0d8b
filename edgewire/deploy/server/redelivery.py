"""Redelivery of messages that a node has pulled and not replied to.

Flower's SuperLink counts a message as delivered once a node has pulled it. But the response to the
pull may be lost, or the node may be killed before it has the message on disk. Then Flower's
SuperLink would wait for the reply until the run's time-out.

A node of this project pulls only when it has no unanswered message. So if it pulls, an earlier
message without a reply has not reached it, and the server sends that message again. If the message
has reached the node after all, the node recognizes the message's id and sends the same reply again.

A message may also end the node's process before it is on disk. If `MOST` processes of a node have
pulled a message, the server deletes it, and Flower gives the ServerApp an error instead of a reply.

This state is in memory, because a SuperLink's runs also end when its process ends. It takes a few
entries per node.
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

from flwr.common.constant import Status
from flwr.proto.fleet_pb2 import PullMessagesResponse

from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.node_registry import called

MOST = 5  # processes of a node that get a message and send no reply
log = getLogger("edgewire")


class Redelivery:
    """For each node the messages that it has pulled and not replied to, the oldest first."""

    def __init__(self) -> None:
        self._nodes: dict[int, dict[str, PullMessagesResponse]] = {}
        self._processes: dict[str, set[bytes]] = {}  # message id -> the processes that got it

    def note(self, node: int, response: PullMessagesResponse, process: bytes = b"") -> None:
        """Store the message in a response to a pull of this node, by the process with a number."""
        for message in response.messages_list:
            name = message.metadata.message_id
            self._nodes.setdefault(node, {})[name] = response
            self._processes.setdefault(name, set()).add(process)

    def replied(self, node: int, message_id: str) -> None:
        """Remove a message, because the node's reply to it has arrived."""
        held = self._nodes.get(node, {})
        held.pop(message_id, None)
        self._processes.pop(message_id, None)
        if not held:
            self._nodes.pop(node, None)

    def again(self, node: int, state: Any, process: bytes = b"") -> PullMessagesResponse | None:
        """Return the oldest message that a node has not replied to; None if there is none.

        `process`: the number of the process that pulls (`duplicates.py`), or b"".

        This call also removes messages for which no reply is expected any more: messages whose
        reply came by another call, expired messages, and messages of finished runs.
        """
        for message_id, response in list(self._nodes.get(node, {}).items()):
            if _is_open(message_id, response.messages_list[0].metadata, state):
                if not process or len(self._processes.get(message_id, set()) | {process}) <= MOST:
                    return response
                name = called(node, state)
                log.warning("%s got a message %d times and died: it fails", name, MOST)
                state.delete_messages({message_id})
                state.object_store.delete(message_id)
            self.replied(node, message_id)
        return None


def _is_open(message_id: str, metadata: Any, state: Any) -> bool:
    """Return whether the SuperLink still expects a reply to this message."""
    run = state.get_run_info(run_ids=[metadata.run_id])
    return (
        bool(run)
        and run[0].status.status != Status.FINISHED
        and metadata.created_at + metadata.ttl > steady_clock.now().timestamp()
        and message_id in state.get_message_ids_from_run_id(metadata.run_id)
        and message_id in state.object_store  # removed when the reply is confirmed
    )
