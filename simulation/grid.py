"""The in-process Grid: Flower's way to the nodes, over a pool of hosts and a virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from simulation.clock import VirtualClock, steps_of
from simulation.workers import Pool

SERVER = 0  # node ids are 1 to n


class LocalGrid(Grid):
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
        self._open: Replies | None = None

    @property
    def virtual_seconds(self) -> float:
        """The virtual clock, seconds since the run began."""
        self.settle()
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
        self.settle()
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
        self.settle()
        ids = [i for i in message_ids if i in self._sent or i in self._arrivals]
        self._compute(ids)
        if not ids:
            return []
        first = min(self._arrivals[i][0] for i in ids)
        self._clock.now = max(self._clock.now, first)
        return [self._arrivals.pop(i)[1] for i in ids if self._arrivals[i][0] <= first]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Replies:
        """Send messages; return the replies in time, in the messages' order, as they come.

        Who iterates works on the first replies while the nodes work on the last ones.
        """
        start = self._clock.now
        deadline = float("inf") if timeout is None else start + timeout
        self._open = Replies(self._stream(self.push_messages(messages), deadline))
        return self._open

    def _stream(self, ids: list[str], deadline: float) -> Iterator[Message]:
        last = self._clock.now
        for message_id in ids:
            self._compute([message_id])
            arrival, reply = self._arrivals.pop(message_id)
            last = max(last, arrival)
            if arrival <= deadline:
                yield reply
        self._clock.now = min(last, deadline)

    def settle(self) -> None:
        """Finish the last `send_and_receive`: the clock stands where its last reply arrived."""
        if self._open is not None:
            replies, self._open = self._open, None
            len(replies)

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
        found = (r for r in reply.content.values() if isinstance(r, MetricRecord))
        metrics: Mapping[str, object] = next(found, {})
        return self._clock.arrival(node, sent, down, steps_of(metrics), size_of(reply.content))


class Replies(Sequence[Message]):
    """The replies to a round's messages: a list that fills while it is gone through."""

    def __init__(self, stream: Iterator[Message]) -> None:
        self._stream = stream
        self._here: list[Message] = []

    def __iter__(self) -> Iterator[Message]:
        position = 0
        while position < len(self._here) or self._next():
            yield self._here[position]
            position += 1

    def __len__(self) -> int:
        while self._next():
            pass
        return len(self._here)

    def __getitem__(self, index: Any) -> Any:
        len(self)
        return self._here[index]

    def _next(self) -> bool:
        reply = next(self._stream, None)
        if reply is not None:
            self._here.append(reply)
        return reply is not None


def size_of(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message's content."""
    arrays = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(len(array.data) for record in arrays for array in record.values())
