"""Redelivery of messages that a node has pulled and not replied to.

Flower's SuperLink counts a message as delivered once a node has pulled it. If the response to the
pull is lost, or the node is killed before it has the message on disk, nobody would reply. A node of
this project pulls only when it has no message in hand, so an earlier message without a reply has
not reached it. If the message has reached it after all, the node recognizes it and sends the same
reply.

This state is in memory, a few entries a node: a SuperLink's runs end with it anyway. At a plain
SuperLink of Flower such a message is lost until the run's time-out.
"""

from __future__ import annotations

import time
from typing import Any

from flwr.common.constant import Status
from flwr.proto.fleet_pb2 import PullMessagesResponse


class Redelivery:
    """The messages that each node has pulled, by their ids, the oldest first."""

    def __init__(self) -> None:
        self._nodes: dict[int, dict[str, PullMessagesResponse]] = {}

    def note(self, node: int, response: PullMessagesResponse) -> None:
        """Note the message that a node is given."""
        for message in response.messages_list:
            self._nodes.setdefault(node, {})[message.metadata.message_id] = response

    def replied(self, node: int, message_id: str) -> None:
        """Forget a message whose reply has arrived."""
        held = self._nodes.get(node, {})
        held.pop(message_id, None)
        if not held:
            self._nodes.pop(node, None)

    def again(self, node: int, state: Any) -> PullMessagesResponse | None:
        """Return the oldest message that a node has not replied to; None if there is none.

        It forgets messages whose reply nobody awaits: answered by another call, expired, or of a
        run that is over.
        """
        for message_id, response in list(self._nodes.get(node, {}).items()):
            if _is_open(message_id, response.messages_list[0].metadata, state):
                return response
            self.replied(node, message_id)
        return None


def _is_open(message_id: str, metadata: Any, state: Any) -> bool:
    """Return whether a SuperLink still awaits the reply to a delivered message."""
    run = state.get_run_info(run_ids=[metadata.run_id])
    return (
        bool(run)
        and run[0].status.status != Status.FINISHED
        and metadata.created_at + metadata.ttl > time.time()
        and message_id in state.get_message_ids_from_run_id(metadata.run_id)
        and message_id in state.object_store  # removed when the reply is confirmed
    )
