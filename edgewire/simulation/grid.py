"""The in-process Grid: it sends messages to a pool of node hosts, on a virtual clock."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.constant import NodeStatus
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.compact_records import restored
from edgewire.compression.flower.headers import HEADER
from edgewire.compression.flower.message_size import Size, measured
from edgewire.compression.flower.records import (
    VOLATILE,
    content_of,
    filled,
    metadata_of,
    values_of,
)
from edgewire.compression.flower.timed_grid import TimedGrid
from edgewire.simulation.clock import NEVER, ClockState, Journey, VirtualClock, steps_of
from edgewire.simulation.other_link_clock import BandwidthModel, BandwidthModelState
from edgewire.simulation.stall import StallGuard
from edgewire.simulation.workers.pool import Pool

SERVER = 0  # node ids are 1 to n
_START = datetime(1970, 1, 1, tzinfo=UTC)  # start of virtual time; nodes register just after it


@dataclass
class GridState:
    """The state of a run in the local engine after all replies under way have been computed.

    `number`: the number of messages so far. `count`: the number of messages to each node. `sent`:
    message id -> its journey, for replies without an arrival time yet. `queues`: the ids of a
    node's messages in `sent`, in order. `bounds`: a heap of lower bounds of the arrival times of
    replies. `early`: computed replies without an arrival time yet. `arrivals`: replies with their
    arrival times. `lives`: for each node, the number of its crashes before its last message.
    `nodes`: the nodes' states.
    """

    number: int = 0
    count: Counter[int] = field(default_factory=Counter)
    sent: dict[str, Journey] = field(default_factory=dict)
    queues: dict[int, deque[str]] = field(default_factory=dict)
    bounds: list[tuple[float, int, str]] = field(default_factory=list)
    early: dict[str, Message] = field(default_factory=dict)
    arrivals: dict[str, tuple[float, Message]] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    clock: ClockState = field(default_factory=ClockState)
    line: BandwidthModelState | None = None
    nodes: dict[int, RecordDict] = field(default_factory=dict)


class LocalGrid(TimedGrid):
    """Sends messages to nodes in this process or its workers.

    Replies and their order are the same for any number of workers. Time-outs and `virtual_seconds`
    are on the virtual clock, and `pull_messages` advances this clock to the next arrival. A node
    starts to work on a message when the message is sent. The grid waits for the node only when the
    node's reply may be the next to arrive. A reply that the network loses is dropped.
    """

    def __init__(self, pool: Pool, nodes: int, clock: VirtualClock | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
        self._pool = pool
        self._nodes = range(1, nodes + 1)
        self._clock = clock or VirtualClock()
        self._state = GridState(clock=self._clock.state)
        self._line: BandwidthModel | None = None
        self.stall = StallGuard()
        self.replied_bytes = 0  # bytes of all replies, also of lost and unfetched ones

    @property
    def virtual_seconds(self) -> float:
        """The virtual clock, seconds since the run began."""
        return self._clock.state.now

    now = virtual_seconds  # deadlines are on this clock

    def follow(self, plain_bytes: int) -> None:
        """From now on, also compute the time that uncompressed models of `plain_bytes` would take.

        Flower would not send the record `HEADER` either.
        """
        self._line = BandwidthModel(self._clock.network, self._clock.seed, plain_bytes)

    @property
    def comparison(self) -> dict[str, float | None]:
        """`BandwidthModel.comparison`; {} if `follow` was not called."""
        return self._line.comparison if self._line else {}

    def drain(self) -> None:
        """Compute the replies to all unanswered messages; their arrival times do not change."""
        for reply in self._pool.drain():
            self._state.early[reply.metadata.reply_to_message_id] = reply

    def save(self) -> GridState:
        """Compute the replies to all unanswered messages; return the run's state in this engine.

        Use the state before the next call of this grid, which changes the state. Raises `OSError`
        if memory or disk space for the transfer of the nodes' states is missing.
        """
        self.drain()
        line = self._line.state if self._line else None
        nodes = {
            node: filled(
                RecordDict, {k: each for k, each in values_of(state).items() if k != VOLATILE}
            )
            for node, state in self._pool.states().items()
        }
        return replace(self._state, line=line, nodes=nodes)

    def load(self, state: GridState) -> None:
        """Continue from the state of another grid with the same nodes and network.

        Call it before the first message, and after `follow`.
        """
        self._pool.load(state.nodes)
        self._state, self._clock.state = replace(state, nodes={}), state.clock
        if self._line and state.line:
            self._line.load(state.line)

    def set_run(self, run: Run) -> None:
        """Do nothing: this grid has one run."""

    @property
    def run(self) -> Run:
        """Flower's description of the run, with the run's id only."""
        return Run.create_empty(TaskIdentity.run_id)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's old API; the new one is `Message(...)`)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the nodes that are online, in the order of their partitions."""
        if self._clock.steady:
            self.stall.asked(len(self._nodes))
            return self._nodes
        return tuple(node for node in self._nodes if self._clock.present(node))

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes that are online, registered in the order of their partitions."""
        found = []
        for node in self.get_node_ids():
            when = (_START + timedelta(microseconds=node)).isoformat(timespec="microseconds")
            found.append(NodeInfo(node_id=node, status=NodeStatus.ONLINE, registered_at=when))
        return found

    def tend(self) -> None:
        """Keep the workers busy while the ServerApp pulls no messages."""
        self._pool.tend()

    @property
    def next_change(self) -> float:
        """The next virtual second at which a node joins or rejoins; infinity if no node will."""
        return self._clock.change(self._nodes)

    def push_messages(self, messages: Iterable[Message], ttl: float = NEVER) -> list[str]:
        """Send messages; return their ids.

        `ttl`: virtual seconds. A node drops a message on which it has not begun to work by then.
        (The `ttl` in a message is on the wall clock.)
        """
        self.stall.moved()
        state = self._state
        if not state.sent:  # the remaining bounds belong to computed replies
            state.bounds.clear()
        messages, sizes = list(messages), dict[int, tuple[Size, float]]()
        followed: list[tuple[str, int, Size]] = []
        for message in messages:
            metadata = metadata_of(message)
            node, state.number = metadata["_dst_node_id"], state.number + 1
            state.count[node] += 1
            message_id = f"{node}-{state.count[node]}"  # does not depend on messages to other nodes
            metadata["_message_id"] = message_id
            content = content_of(message)
            if id(content) not in sizes:
                size = measured(content, HEADER)
                sizes[id(content)] = size, self._reported(content, ConfigRecord)
            self._compute_crashes(node)
            down, steps = sizes[id(content)]
            followed.append((message_id, node, down))
            task = self._clock.send(node, self._clock.state.now, down[2], ttl, steps)
            if task.earliest == NEVER:
                continue
            anew = task.life != state.lives.get(node, 0)
            if anew:
                state.lives[node] = task.life
            state.sent[message_id] = task
            state.queues.setdefault(node, deque()).append(message_id)
            heapq.heappush(state.bounds, (task.earliest, state.number, message_id))
            self._pool.put(message, anew=anew, due=task.earliest)
        if self._line:
            self._line.push(followed, ttl)
        self.tend()  # the caller may compute for a long time before its next call
        return [each[0] for each in followed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Advance the clock to the next reply to these messages; return the arrived replies."""
        return self.pull_before(message_ids, NEVER)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Advance the clock to the next reply to these messages, at most to `deadline`.

        `deadline` is in virtual seconds. Return the replies that have arrived by then, in the order
        of `message_ids`. If some replies have already arrived, the clock does not advance.
        """
        if self._line:
            self._line.send()
        # A round's dictionary of ids is not copied for each of its replies.
        ids = message_ids if isinstance(message_ids, dict) else dict.fromkeys(message_ids)
        arrivals = self._state.arrivals
        self._compute_until_sure(ids, deadline)
        there = {i: arrival for i, (arrival, _) in arrivals.items() if i in ids}
        now = min([deadline, *there.values()])
        if now == NEVER:
            self.stall.asked(len(self._nodes))
            return []
        self.stall.moved()
        now = self._clock.state.now = max(self._clock.state.now, now)
        taken = [i for i, arrival in there.items() if arrival <= now]
        if len(taken) > 1:
            arrived = {*taken}
            taken = [i for i in ids if i in arrived]
        if self._line:
            self._line.take(taken) if taken else self._line.lose_track()
        return [arrivals.pop(i)[1] for i in taken]

    def drop_replies(self, message_ids: Iterable[str]) -> None:
        """Compute and delete the replies to these messages, which will not be pulled."""
        for message_id in message_ids:
            self._compute(message_id)
            self._state.arrivals.pop(message_id, None)

    def _compute_until_sure(self, ids: Collection[str], deadline: float) -> None:
        """Compute replies until it is certain which reply to `ids` arrives next.

        Each uncomputed reply has a lower bound of its arrival time. The method computes the reply
        with the lowest bound, and repeats this until the lowest bound is later than the earliest
        known arrival. It also computes replies to messages that are not in `ids`. They matter for
        two reasons: all messages share a limited server link, and a node handles its messages one
        after another.
        """
        arrivals = self._state.arrivals
        first = min((arrival for i, (arrival, _) in arrivals.items() if i in ids), default=NEVER)
        while self._state.bounds and self._state.bounds[0][0] <= min(
            max(first, self._clock.state.now), deadline
        ):
            message_id = heapq.heappop(self._state.bounds)[2]
            self._compute(message_id, in_bulk=True)
            if message_id in ids and message_id in arrivals:
                first = min(first, arrivals[message_id][0])

    def _compute(self, message_id: str, in_bulk: bool = False) -> None:
        """Wait for a reply; store it with its arrival time, unless it is lost.

        `in_bulk`: the pool may also wait for some other replies that are due soon.
        """
        if message_id not in self._state.sent:
            return
        node = self._state.sent[message_id].node
        queue = self._state.queues[node]
        # The order of sending makes a node's queue and losses the same for any pool.
        while message_id in self._state.sent:
            self._arrive(queue.popleft(), in_bulk)
        if not queue:
            del self._state.queues[node]

    def _compute_crashes(self, node: int) -> None:
        """Compute the replies after which this node crashes.

        The node loses its state then, so its next message must be computed without this state.
        """
        if self._clock.steady or self._clock.network.server_mbps is not None:
            return  # on a limited server link all replies are computed in the order of sending
        for message_id in tuple(self._state.queues.get(node, ())):
            if message_id in self._state.sent and self._state.sent[message_id].crashes:
                self._compute(message_id)

    def _arrive(self, message_id: str, in_bulk: bool) -> None:
        while message_id not in self._state.early:
            for reply in self._pool.get(in_bulk):
                self._state.early[metadata_of(reply)["_reply_to_message_id"]] = reply
        reply, task = self._state.early.pop(message_id), self._state.sent.pop(message_id)
        steps, up = 0.0, (0, 0, 0)
        if not reply.has_error():
            content = content_of(reply)
            steps = self._reported(content, MetricRecord)
            up = measured(content, HEADER)
        self.replied_bytes += up[2]
        if self._line:
            self._line.answer(message_id, steps, up)
        arrival = self._clock.answer(task, steps, up[2])
        if arrival < NEVER:
            self._state.arrivals[message_id] = (arrival, reply)

    def _reported(self, content: RecordDict, kind: type[ConfigRecord | MetricRecord]) -> float:
        """Return the local steps that a message announces, or that a reply reports."""
        try:
            content = restored(content)
        except PayloadError:  # the server will refuse this reply
            return 0.0
        for record in values_of(content).values():
            if kind in type(record).__mro__:
                return steps_of(values_of(record))
        return 0.0
