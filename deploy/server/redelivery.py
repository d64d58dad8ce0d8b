"""Messages that nodes were handed, and have not replied to: handed again to a node that asks anew.

Flower's SuperLink takes a message as delivered once a node has pulled it. The answer to the pull
may be lost, or the node killed before it has written the message down; then nobody would reply. A
node of ours asks only when it has nothing in hand, so what it was handed before has not reached it;
if it has after all, it knows the message and replies as before.

Kept in memory, a few lines a node: a SuperLink that ends takes its runs along. By plain Fleet calls
to a SuperLink of Flower's such a message waits until the run's patience is over.
"""

from __future__ import annotations

import time
from typing import Any

from flwr.common.constant import Status
from flwr.proto.fleet_pb2 import PullMessagesResponse


class Redelivery:
    """What each node was handed, by the ids of the messages, the oldest first."""

    def __init__(self) -> None:
        self._nodes: dict[int, dict[str, PullMessagesResponse]] = {}

    def note(self, node: int, response: PullMessagesResponse) -> None:
        """Note what a node is handed."""
        for message in response.messages_list:
            self._nodes.setdefault(node, {})[message.metadata.message_id] = response

    def replied(self, node: int, message_id: str) -> None:
        """Forget a message: the reply is here."""
        held = self._nodes.get(node, {})
        held.pop(message_id, None)
        if not held:
            self._nodes.pop(node, None)

    def again(self, node: int, state: Any) -> PullMessagesResponse | None:
        """Return the oldest message that a node has still to reply to; None: there is none.

        Forgets those that nobody waits for any more: answered otherwise, expired, of a run that is
        over.
        """
        for message_id, response in list(self._nodes.get(node, {}).items()):
            if _is_open(message_id, response.messages_list[0].metadata, state):
                return response
            self.replied(node, message_id)
        return None


def _is_open(message_id: str, metadata: Any, state: Any) -> bool:
    """Return whether a SuperLink still waits for the reply to a message that was delivered."""
    run = state.get_run_info(run_ids=[metadata.run_id])
    return (
        bool(run)
        and run[0].status.status != Status.FINISHED
        and metadata.created_at + metadata.ttl > time.time()
        and message_id in state.get_message_ids_from_run_id(metadata.run_id)
        and message_id in state.object_store  # it goes when its reply is confirmed
    )
