"""The in-process Grid: Flower's way to the nodes, over a pool of hosts and a virtual clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.constant import NodeStatus
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from .bandwidth_model import BandwidthModel
from .clock import NEVER, VirtualClock, steps_of
from .message_size import Size, measured
from .replies import Replies
from .stall import StallGuard
from .state import GridState
from .workers.pool import Pool

SERVER = 0  # node ids are 1 to n
_START = datetime(1970, 1, 1, tzinfo=UTC)  # of virtual time: all nodes register just after


class LocalGrid(Grid):
    """Sends messages to nodes in this process or its workers.

    Replies are the same, and in the same order, for any number of workers. Time-outs and
    `virtual_seconds` are on the virtual clock; a `pull_messages` goes on to the next arrival.
    A node works on a message from when it is sent; it is waited for only when its reply could be
    the next to arrive. A reply that the network loses is never returned, and not kept.
    """

    def __init__(self, pool: Pool, nodes: int, clock: VirtualClock | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
        self._pool = pool
        self._nodes = range(1, nodes + 1)
        self._clock = clock or VirtualClock()
        self._state = GridState(clock=self._clock.state)
        self._open: Replies | None = None
        self._line: BandwidthModel | None = None
        self._note = ""  # the name of the record that goes with payloads
        self.stall = StallGuard()
        self.replied_bytes = 0  # of all that nodes have sent, also what nobody fetches or is lost

    @property
    def virtual_seconds(self) -> float:
        """The virtual clock, seconds since the run began."""
        self.settle()
        return self._clock.now

    now = virtual_seconds  # what deadlines are given in

    @property
    def last_arrival(self) -> float:
        """The virtual second by which all that was sent is there, as far as that is known now.

        A reply that nobody has waited for was not computed, so that its message alone counts.
        """
        self.settle()
        messages = [task.received for task in self._state.sent.values()]
        replies = [arrival for arrival, _ in self._state.arrivals.values()]
        return max(self._clock.now, *messages, *replies, 0.0)

    def follow(self, plain_bytes: int, note: str = "") -> None:
        """Compare what is sent from here on with models of `plain_bytes` in place of payloads.

        `note`: the name of a record that would not be sent with them.
        """
        self._line = BandwidthModel(self._clock.network, self._clock.seed, plain_bytes)
        self._note = note

    @property
    def comparison(self) -> dict[str, float | None]:
        """The fields of `line.Comparison`, if a line is followed and they are known; else empty."""
        self.settle()
        found = self._line.comparison if self._line else None
        return {} if found is None else found._asdict()

    def drain(self) -> None:
        """Compute what is under way; it is not there any sooner."""
        self.settle()
        for reply in self._pool.drain():
            self._state.early[reply.metadata.reply_to_message_id] = reply

    def save(self) -> GridState:
        """Return all that the run has come to here; to be read at once, as it goes on changing.

        What is under way is computed first. Raises `OSError` if there is no room for what nodes
        keep on its way here.
        """
        self.drain()
        line = self._line.state if self._line else None
        return replace(self._state, line=line, nodes=self._pool.states())

    def load(self, state: GridState) -> None:
        """Go on with what another grid of the same nodes and network has come to.

        To be called before the first message, and after `follow`.
        """
        self._pool.load(state.nodes)
        self._state, self._clock.state = replace(state, nodes={}), state.clock
        if self._line and state.line:
            self._line.load(state.line)

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

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the nodes that are there, in the order of their partitions."""
        if self._clock.steady:
            self.stall.asked(len(self._nodes))
            return self._nodes
        self.settle()
        return tuple(node for node in self._nodes if self._clock.present(node))

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes that are there, as registered in the order of their partitions."""
        found = []
        for node in self.get_node_ids():
            when = (_START + timedelta(microseconds=node)).isoformat(timespec="microseconds")
            found.append(NodeInfo(node_id=node, status=NodeStatus.ONLINE, registered_at=when))
        return found

    def tend(self) -> None:
        """Keep the workers at work while nobody pulls messages."""
        self._pool.tend()

    @property
    def next_change(self) -> float:
        """The virtual second at which a node joins or comes back next; infinity: none will."""
        return self._clock.change(self._nodes)

    def push_messages(
        self, messages: Iterable[Message], ttl: float = NEVER, *, in_turn: bool = False
    ) -> list[str]:
        """Send messages; return their ids.

        `ttl`: a node that has not begun with one after so many virtual seconds never will. (Their
        own `ttl` is in seconds of another clock.) `in_turn`: they are computed in their own order,
        not in that in which answers could arrive.
        """
        return self._push(messages, ttl, ttl, in_turn)

    def _push(
        self, messages: Iterable[Message], ttl: float, timeout: float, in_turn: bool
    ) -> list[str]:
        self.settle()
        self.stall.moved()
        state = self._state
        if not state.sent:  # what bounds there are left are of replies that have come
            state.bounds.clear()
        messages, sizes = list(messages), dict[int, tuple[Size, float]]()
        followed: list[tuple[str, int, Size]] = []
        for message in messages:
            node, state.number = message.metadata.dst_node_id, state.number + 1
            state.count[node] += 1
            message_id = f"{node}-{state.count[node]}"  # the same whoever else is sent any
            message.metadata.__dict__["_message_id"] = message_id
            content = message.content
            if id(content) not in sizes:
                size = measured(content, self._note)
                sizes[id(content)] = size, _reported(content, ConfigRecord)
            self._settle_crashes(node)
            down, steps = sizes[id(content)]
            followed.append((message_id, node, down))
            task = self._clock.send(node, self._clock.now, down[2], ttl, steps)
            if task.earliest == NEVER:
                continue
            anew = task.life != state.lives.get(node, 0)
            if anew:
                state.lives[node] = task.life
            state.sent[message_id] = task
            state.queues.setdefault(node, deque()).append(message_id)
            heapq.heappush(state.bounds, (task.earliest, state.number, message_id))
            self._pool.put(message, anew=anew, due=0.0 if in_turn else task.earliest)
        if self._line:
            self._line.push(followed, timeout)
        self.tend()  # who sends one message at a time may be long in coming back
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Go on to the next arrival among these messages; return the replies there by then."""
        return self.pull_before(message_ids, NEVER)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Go on to the next arrival among these messages, or to the deadline if none is before.

        Return the replies that are there by then, in the order of `message_ids`. What is there
        already is returned at once; what is still under way stays for a later pull.
        """
        self.settle()
        if self._line:
            self._line.send()
        ids = dict.fromkeys(message_ids)
        self._compute_until_sure(ids, deadline)
        there = [(self._state.arrivals[i][0], i) for i in ids if i in self._state.arrivals]
        now = min(min(there)[0] if there else NEVER, deadline)
        if now == NEVER:
            self.stall.asked(len(self._nodes))
            return []
        self.stall.moved()
        now = self._clock.now = max(self._clock.now, now)
        taken = [i for arrival, i in there if arrival <= now]
        if self._line:
            self._line.take(taken) if taken else self._line.lose_track()
        return [self._state.arrivals.pop(i)[1] for i in taken]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Replies:
        """Send messages; return the replies in time, in the messages' order, as they come.

        Who iterates works on the first replies while the nodes work on the last ones.
        """
        timeout = NEVER if timeout is None else timeout
        deadline = self.virtual_seconds + timeout
        ids = self._push(messages, NEVER, timeout, in_turn=True)
        self._open = Replies(self._stream(ids, deadline))
        return self._open

    def _stream(self, ids: list[str], deadline: float) -> Iterator[Message]:
        last = self._clock.now
        if self._line:
            self._line.send()
        for message_id in ids:
            self._compute(message_id)
            arrival, reply = self._state.arrivals.pop(message_id, (NEVER, None))
            waited = min(arrival, deadline)
            if waited < NEVER:
                last = max(last, waited)
            if reply is not None and arrival <= deadline:
                yield reply
        self._clock.now = last
        if self._line:
            self._line.take(ids)

    def settle(self) -> None:
        """Finish the last `send_and_receive`: the clock stands where its last reply arrived."""
        if self._open is not None:
            replies, self._open = self._open, None
            len(replies)

    def _compute_until_sure(self, ids: Collection[str], deadline: float) -> None:
        """Compute replies until none of the others to `ids` can be there before the next one.

        Replies that are not asked for are computed with them: on a limited server's link the order
        decides, and when a node is free again depends on all it was sent.
        """
        first = min(
            (self._state.arrivals[i][0] for i in ids if i in self._state.arrivals), default=NEVER
        )
        while self._state.bounds and self._state.bounds[0][0] <= min(
            max(first, self._clock.now), deadline
        ):
            message_id = heapq.heappop(self._state.bounds)[2]
            self._compute(message_id, in_bulk=True)
            if message_id in ids and message_id in self._state.arrivals:
                first = min(first, self._state.arrivals[message_id][0])

    def _compute(self, message_id: str, in_bulk: bool = False) -> None:
        """Wait for a reply; keep it, unless it is lost, with its arrival time.

        `in_bulk`: some others that are due soon may be waited for, too.
        """
        if message_id not in self._state.sent:
            return
        node = self._state.sent[message_id].node
        queue = self._state.queues[node]
        # a node's replies in the order sent: its queue and its losses are the same for any pool
        while message_id in self._state.sent:
            self._arrive(queue.popleft(), in_bulk)
        if not queue:
            del self._state.queues[node]

    def _settle_crashes(self, node: int) -> None:
        """Compute what a node may crash after: what it is sent next may find its state lost."""
        if self._clock.steady or self._clock.network.server_mbps is not None:
            return  # on a limited server's link replies are computed in the order of sending anyway
        for message_id in tuple(self._state.queues.get(node, ())):
            if message_id in self._state.sent and self._state.sent[message_id].crashes:
                self._compute(message_id)

    def _arrive(self, message_id: str, in_bulk: bool) -> None:
        while message_id not in self._state.early:
            for reply in self._pool.get(in_bulk):
                self._state.early[reply.metadata.reply_to_message_id] = reply
        reply, task = self._state.early.pop(message_id), self._state.sent.pop(message_id)
        steps, up = 0.0, (0, 0, 0)
        if not reply.has_error():
            steps = _reported(reply.content, MetricRecord)
            up = measured(reply.content, self._note)
        self.replied_bytes += up[2]
        if self._line:
            self._line.answer(message_id, steps, up)
        arrival = self._clock.answer(task, steps, up[2])
        if arrival < NEVER:
            self._state.arrivals[message_id] = (arrival, reply)


def _reported(content: RecordDict, kind: type[ConfigRecord | MetricRecord]) -> float:
    """Return the local steps that a message promises, or a reply reports."""
    found = (record for record in content.values() if isinstance(record, kind))
    values: Mapping[str, object] = next(found, {})
    return steps_of(values)
