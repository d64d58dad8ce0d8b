"""The grid for the ServerApp of any app: the local grid with the checks of Flower's grids."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import groupby
from logging import ERROR

from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.message_type import MessageType
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore import log
from flwr.supercore.run import Run

from edgewire.compression.flower.message_size import size_of
from edgewire.compression.flower.timed_grid import GridWrapper, gathered
from edgewire.simulation.clock import NEVER
from edgewire.simulation.grid import SERVER, LocalGrid

GATHERING = 0.02  # seconds in which other threads may send messages before the clock advances


@dataclass
class Counts:
    """Counts of the ServerApp's messages and replies. `message_size.size_of` counts the bytes."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    down_bytes: int = 0
    up_bytes: int = 0


class GuestGrid(GridWrapper):
    """A `LocalGrid` with the guarantees of Flower's own grids, on which any app may rely.

    It copies a message's content when the message is sent. A message is valid for its `ttl`, in
    virtual seconds. If no reply has arrived by then, an error replaces the reply. Any thread may
    call the grid. Threads that wait together, as in Flower's old API, wait at the same virtual
    time. `pull_messages` advances the clock to the next arrival, so a polling loop makes progress.
    """

    _grid: LocalGrid

    def __init__(self, grid: LocalGrid, run: Run) -> None:
        self.counts = Counts()
        self._grid, self._run = grid, run
        self._open: dict[str, tuple[Message, float]] = {}  # unanswered; when each expires
        self._there: dict[str, Message] = {}  # message id -> arrived reply that is not fetched yet
        self._turn = threading.Condition()
        self._threads = set[int]()  # ids of the threads that have sent or pulled
        self._calls: dict[object, tuple[Collection[str], float]] = {}  # awaited ids, deadline
        self._pushes = 0
        self._driven = False  # whether a thread is advancing the clock; other threads then wait

    @property
    def unfetched_bytes(self) -> int:
        """Bytes of the replies that the ServerApp did not get: lost, late or unfetched replies."""
        return self._grid.replied_bytes - self.counts.up_bytes

    def tend(self) -> None:
        """Keep the workers busy while the ServerApp pulls no messages."""
        with self._turn:
            self._grid.tend()

    @property
    def run(self) -> Run:
        """A copy of Flower's description of the run: its id, its app and its overrides."""
        return copy(self._run)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes that are online, in the order of their partitions."""
        with self._turn:
            return list(self._grid.get_node_ids())

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes that are online, in the order of their partitions."""
        with self._turn:
            return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message], ttl: float = NEVER) -> list[str]:
        """Send messages; return their ids. A message to an offline node is dropped and logged.

        `ttl`: virtual seconds. A node drops a message on which it has not begun to work by then.
        Raises `ValueError` for a message that is a reply, or that has a `ttl` of at most 0.
        """
        with self._turn:
            return self._push(self._checked(messages), ttl)

    def _checked(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages to online nodes. Raises `ValueError` for an invalid message."""
        messages = list(messages)
        for message in messages:
            if message.metadata.reply_to_message_id or message.metadata.ttl <= 0:
                raise ValueError(f"Invalid message: {message}")
        self._threads.add(threading.get_ident())
        nodes = set(self._grid.get_node_ids())
        self._grid.stall.moved()
        for node in {message.metadata.dst_node_id for message in messages} - nodes:
            log(ERROR, "Invalid destination node ID for Message: %s", node)
        return [message for message in messages if message.metadata.dst_node_id in nodes]

    def _copies(self, messages: list[Message]) -> list[Message]:
        """Count the messages; return copies. Messages with equal content objects share one copy."""
        contents: dict[int, tuple[RecordDict, int]] = {}
        for message in messages:
            if id(message.content) not in contents:
                content = deepcopy(message.content)
                contents[id(message.content)] = content, size_of(content)
        self.counts.sent += len(messages)
        self.counts.down_bytes += sum(contents[id(m.content)][1] for m in messages)
        return [make_message(copy(m.metadata), contents[id(m.content)][0]) for m in messages]

    def _push(self, messages: list[Message], ttl: float = NEVER) -> list[str]:
        now, copies = self._grid.now, self._copies(messages)
        for life, group in groupby(copies, key=lambda message: message.metadata.ttl):
            alike = list(group)
            self._grid.push_messages(alike, min(ttl, life))
            self._open |= {m.metadata.message_id: (m, now + life) for m in alike}
        self._pushes += 1
        return _named_alike(messages, copies)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Advance the clock to the next reply to these messages; return the replies that are there.

        For an id that is unknown, or whose reply was fetched before, it returns an error reply.
        """
        return self.pull_before(message_ids, NEVER)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Advance the clock to the next reply to these messages, at most to `deadline`.

        Return the replies that are there, as `pull_messages` does. `deadline`: a virtual second.
        """
        with self._turn:
            ids = dict.fromkeys(message_ids)
            self._threads.add(threading.get_ident())
            unknown = [_unknown(i, self._run.run_id) for i in ids if i not in self._open]
            known = [i for i in ids if i in self._open]
            if not ids:  # the caller waits only for the deadline
                return self._grid.pull_before([], deadline)
            return unknown + self._next(known, deadline)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return the replies that arrive within `timeout` virtual seconds."""
        timeout = NEVER if timeout is None else timeout
        with self._turn:
            checked = self._checked(messages)
            if len(self._threads) == 1 and len({m.metadata.ttl for m in checked}) == 1:
                return self._round(checked, timeout)
            waiting = dict.fromkeys(self._push(checked))
            deadline, replies = self._grid.now + timeout, list[Message]()
            while waiting and (new := self._next(waiting, deadline)):
                replies += new
                for reply in new:
                    del waiting[reply.metadata.reply_to_message_id]
            return replies

    def _round(self, messages: list[Message], timeout: float) -> list[Message]:
        """Send messages and return their replies. Only for a grid that a single thread uses."""
        copies, ttl = self._copies(messages), messages[0].metadata.ttl
        replies = gathered(self._grid, copies, min(timeout, ttl))
        there = {reply.metadata.reply_to_message_id: reply for reply in replies}
        if ttl <= timeout:
            there = {m.metadata.message_id: _expired(m) for m in copies} | there
        _named_alike(messages, copies)
        return [self._counted(reply) for reply in there.values()]

    def _next(self, ids: Collection[str], deadline: float) -> list[Message]:
        """Wait for the next replies to these messages; return [] if the deadline is earlier.

        If several threads wait, one thread advances the clock (`_go_on`) to the first event for
        which any thread waits. The other threads sleep until then.
        """
        call = object()
        self._calls[call] = ids, deadline
        try:
            while not (found := [self._take(i) for i in ids if i in self._there]):
                if self._grid.now >= deadline or not any(i in self._open for i in ids):
                    break
                if self._driven:
                    self._turn.wait()
                elif not self._go_on():
                    break
            return found
        finally:
            del self._calls[call]

    def _go_on(self) -> bool:
        """Advance the clock to the next awaited reply, expiry or deadline; False if none exists."""
        self._driven = True
        try:
            self._gather()
            waited = {
                i: self._open[i] for ids, _ in self._calls.values() for i in ids if i in self._open
            }
            until = min(expires for _, expires in waited.values())
            until = min(until, *(deadline for _, deadline in self._calls.values()))
            for reply in self._grid.pull_before(waited, until):
                self._there[reply.metadata.reply_to_message_id] = reply
            for i, (message, expires) in waited.items():
                if i not in self._there and expires <= self._grid.now:
                    self._there[i] = _expired(message)
            return until < NEVER or any(i in self._there for i in waited)
        finally:
            self._driven = False
            self._turn.notify_all()

    def _gather(self) -> None:
        """Wait until the other threads have sent their messages.

        All these messages are then sent at the same virtual time.
        """
        seen = -1
        while len(self._threads) > 1 and seen != self._pushes:
            seen = self._pushes
            self._turn.wait(GATHERING)

    def _take(self, message_id: str) -> Message:
        """Return the reply to a message, and remove the message from the unanswered ones."""
        del self._open[message_id]
        return self._counted(self._there.pop(message_id))

    def _counted(self, reply: Message) -> Message:
        """Count a reply that the ServerApp gets, and give it an id."""
        reply.metadata.__dict__["_message_id"] = f"to-{reply.metadata.reply_to_message_id}"
        if reply.has_error():
            self.counts.failed += 1
        else:
            self.counts.answered += 1
            self.counts.up_bytes += size_of(reply.content)
        return reply


def _named_alike(messages: list[Message], copies: list[Message]) -> list[str]:
    """Give each message the id of its copy; return the ids."""
    ids = [copied.metadata.message_id for copied in copies]
    for message, own in zip(messages, ids, strict=True):
        message.metadata.__dict__["_message_id"] = own
    return ids


def _expired(message: Message) -> Message:
    """Return the error that replaces a reply which did not arrive within the `ttl`."""
    reason = f"no reply within the message's time to live, {message.metadata.ttl:g} s"
    return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason), reply_to=message)


def _unknown(message_id: str, run_id: int) -> Message:
    """Return the error that replaces the reply to an unknown message."""
    metadata = Metadata(run_id, "", SERVER, SERVER, message_id, "", 0.0, 0.0, MessageType.QUERY)
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "no such message, or its reply was fetched")
    return make_message(metadata, error=error)
