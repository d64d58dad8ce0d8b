"""What the server knows of each node's processes: which got its message, and which is the newest.

Redelivery. Flower's SuperLink counts a message as delivered once a node has pulled it. But the
response to the pull may be lost, or the node may be killed before it has the message on disk. Then
Flower's SuperLink would wait for the reply until the run's time-out.

A node of this project pulls only when it has no unanswered message. So if it pulls, an earlier
message without a reply has not reached it, and the server sends that message again. If the message
has reached the node after all, the node recognizes the message's id and sends the same reply again.

A message may also end the node's process before it is on disk. If `MOST` processes of a node have
pulled a message, the server deletes it, and Flower gives the ServerApp an error instead of a reply.

Two machines with the key and the state of one node. Flower treats them as one node. Each would get
some of the node's messages, and a message would not match the machine's state. So each process of a
node chooses a random number and sends it with each compact pull (`edgewire.deploy.server.api`). A
restarted process has a new number. If an old number returns after a new one, two processes run at
the same time, and only the newer one gets messages.

This state is in memory, because a SuperLink's runs also end when its process ends. It takes an
entry per node: a node gets no other message before it has replied.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.common.constant import Status

from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.node_registry import called
from edgewire.deploy.signed_header import PROCESS
from edgewire.machine.liveness import GONE

MOST = 5  # processes of a node that get a message and send no reply
_MOST = 64  # earlier numbers that are remembered for a node
log = getLogger("edgewire")


@dataclass
class _Processes:
    """The processes of a node.

    `message`: the id of the last message; `got`: the numbers of the processes that got it. `now`:
    the number of the newest process; `when`: the time of its last pull; `before`: earlier numbers.
    `logged`: whether the log has already reported that an older process still runs.
    """

    message: str = ""
    got: set[bytes] = field(default_factory=set)
    now: bytes = b""
    when: float = 0.0
    before: deque[bytes] = field(default_factory=lambda: deque(maxlen=_MOST))
    logged: bool = False


class NodeProcesses:
    """The processes of all nodes. `clock`: returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes = dict[int, _Processes]()

    def note(self, node: int, message_id: str, process: bytes = b"") -> None:
        """Store that a message has gone to a node, to the process with a number."""
        known = self._nodes.setdefault(node, _Processes())
        known.got = {process, *(known.got if known.message == message_id else ())}
        known.message = message_id

    def again(self, node: int, state: Any, process: bytes = b"") -> bool:
        """Let Flower hand out a node's last message again if it has no reply; return whether so.

        `process`: the number of the process that pulls, or b"".
        """
        known = self._nodes.get(node, _Processes())
        message = state.message_ins_store.get(known.message)
        if message is None or not _is_open(known.message, message.metadata, state):
            return False
        if process and len(known.got | {process}) > MOST:
            name = called(node, state)
            log.warning("%s got a message %d times and died: it fails", name, MOST)
            state.delete_messages({known.message})
            state.object_store.delete(known.message)
            return False
        message.metadata.delivered_at = ""
        return True

    def is_ousted(self, node: int, number: bytes, state: Any) -> bool:
        """Return whether a process of a node must get no messages, because a newer one runs.

        The first case of two such processes is logged. A node that works on a message may not pull
        for a long time.

        `number`: of the process that pulls. The result is False for any length but `PROCESS`.
        """
        if len(number) != PROCESS:
            return False
        when, known = self._clock(), self._nodes.setdefault(node, _Processes())
        if number != known.now:
            if number in known.before and (when - known.when < GONE or self.again(node, state)):
                if not known.logged:
                    log.warning(
                        "two nodes are online with the key of %s: the one that came first "
                        "gets no messages; give each a key of its own",
                        called(node, state),
                    )
                known.logged = True
                return True
            known.before.append(known.now)
            known.now, known.logged = number, False
        known.when = when
        return False


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
