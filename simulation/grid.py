"""The in-process Grid: Flower's interface to the nodes, over a pool of hosts and a virtual clock."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from simulation.clock import VirtualClock, steps_of
from simulation.workers import Pool

SERVER = 0  # node ids are 1 to n


class LocalGrid(Grid):  # type: ignore[misc]
    """Sends messages to nodes in this process or its workers.

    Replies are the same, and in the same order, for any number of workers. Time-outs and
    `virtual_seconds` are on the virtual clock; a `pull_messages` goes on to the next arrival.
    """

    def __init__(self, pool: Pool, nodes: int, clock: VirtualClock | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
        self._pool = pool
        self._nodes = range(1, nodes + 1)
        self._clock = clock or VirtualClock()
        self._ids = count(1)
        self._sent: dict[str, tuple[Message, float, int]] = {}  # message, when, bytes
        self._early: dict[str, Message] = {}  # computed, not yet dealt with
        self._arrivals: dict[str, tuple[float, Message]] = {}

    @property
    def virtual_seconds(self) -> float:
        """The virtual clock, seconds since the run began."""
        return self._clock.now

    def set_run(self, run: Run) -> None:
        """There is but one run."""

    @property
    def run(self) -> Run:
        """The run, as far as it is known here: its id."""
        return Run.create_empty(TaskIdentity.run_id)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's old way; `Message(...)` is the new one)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all node ids, in the order of their partitions."""
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return their ids."""
        messages, sizes = list(messages), dict[int, int]()
        for message in messages:
            message_id = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = message_id
            content = message.content
            if id(content) not in sizes:
                sizes[id(content)] = size_of(content)
            self._sent[message_id] = (message, self._clock.now, sizes[id(content)])
        self._pool.put(messages)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Go on to the next arrival among these messages; return the replies that arrive then."""
        ids = [i for i in message_ids if i in self._sent or i in self._arrivals]
        self._compute(ids)
        if not ids:
            return []
        first = min(self._arrivals[i][0] for i in ids)
        self._clock.now = max(self._clock.now, first)
        return [self._arrivals.pop(i)[1] for i in ids if self._arrivals[i][0] <= first]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and wait for the replies; return those in time, in the messages' order."""
        start = self._clock.now
        ids = self.push_messages(messages)
        self._compute(ids)
        deadline = float("inf") if timeout is None else start + timeout
        replies = [self._arrivals.pop(i) for i in ids]
        last = max((arrival for arrival, _ in replies), default=start)
        self._clock.now = min(last, deadline)
        return [reply for arrival, reply in replies if arrival <= deadline]

    def _compute(self, ids: list[str]) -> None:
        """Wait until the replies to `ids` are there and have their arrival times."""
        missing = {i for i in ids if i in self._sent and i not in self._early}
        while missing:
            for reply in self._pool.get():
                self._early[reply.metadata.reply_to_message_id] = reply
                missing.discard(reply.metadata.reply_to_message_id)
        for message_id in ids:  # in the order sent, so that a node's queue is the same for any pool
            if message_id in self._early:
                reply = self._early.pop(message_id)
                message, sent, down = self._sent.pop(message_id)
                self._arrivals[message_id] = (self._arrival(message, reply, sent, down), reply)

    def _arrival(self, message: Message, reply: Message, sent: float, down: int) -> float:
        node = message.metadata.dst_node_id
        if reply.has_error():
            return self._clock.arrival(node, sent, down, 0, 0)
        metrics = next(iter(reply.content.metric_records.values()), {})
        return self._clock.arrival(node, sent, down, steps_of(metrics), size_of(reply.content))


def size_of(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message's content."""
    return sum(
        len(array.data) for record in content.array_records.values() for array in record.values()
    )
