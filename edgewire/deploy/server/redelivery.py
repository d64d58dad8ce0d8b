"""Redelivery of messages that a node has pulled and not replied to.

Flower's SuperLink counts a message as delivered once a node has pulled it. But the response to the
pull may be lost, or the node may be killed before it has the message on disk. Then Flower's
SuperLink would wait for the reply until the run's time-out.

A node of this project pulls only when it has no unanswered message. So if it pulls, an earlier
message without a reply has not reached it, and the server sends that message again. If the message
has reached the node after all, the node recognizes the message's id and sends the same reply again.

A message may also end the node's process before it is on disk. If `MOST` processes of a node have
pulled a message, the server deletes it, and Flower gives the ServerApp an error instead of a reply.

This state is in memory, because a SuperLink's runs also end when its process ends. It takes an
entry per node: a node gets no other message before it has replied.
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

from flwr.common.constant import Status

from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.node_registry import called

MOST = 5  # processes of a node that get a message and send no reply
log = getLogger("edgewire")


class Redelivery:
    """For each node its last message, and the processes of the node that got it."""

    def __init__(self) -> None:
        self._nodes = dict[int, tuple[str, set[bytes]]]()  # node -> message id, processes

    def note(self, node: int, message_id: str, process: bytes = b"") -> None:
        """Store that a message has gone to a node, to the process with a number."""
        before, processes = self._nodes.get(node, ("", set[bytes]()))
        self._nodes[node] = message_id, {process, *(processes if before == message_id else ())}

    def again(self, node: int, state: Any, process: bytes = b"") -> bool:
        """Let Flower hand out a node's last message again if it has no reply; return whether so.

        `process`: the number of the process that pulls (`duplicates.py`), or b"".
        """
        message_id, processes = self._nodes.get(node, ("", set[bytes]()))
        message = state.message_ins_store.get(message_id)
        if message is None or not _is_open(message_id, message.metadata, state):
            return False
        if process and len(processes | {process}) > MOST:
            name = called(node, state)
            log.warning("%s got a message %d times and died: it fails", name, MOST)
            state.delete_messages({message_id})
            state.object_store.delete(message_id)
            return False
        message.metadata.delivered_at = ""
        return True


def _is_open(message_id: str, metadata: Any, state: Any) -> bool:
    """Return whether the SuperLink still expects a reply to this message."""
    run = state.get_run_info(run_ids=[metadata.run_id])
    return (
        bool(run)
        and run[0].status.status != Status.FINISHED
        and metadata.created_at + metadata.ttl > steady_clock.now().timestamp()
        and message_id not in state.message_ins_id_to_message_res_id
        and message_id in state.object_store  # removed when the reply is confirmed
    )
