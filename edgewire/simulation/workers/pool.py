"""Pools of node hosts, in this process or in worker processes, with one interface."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from flwr.app import Message, RecordDict

from edgewire.compression.flower.records import content_of, filled, values_of, with_content
from edgewire.machine.errors import EngineError
from edgewire.machine.own_package import found_first
from edgewire.simulation.workers.channel import Channel, Folders
from edgewire.simulation.workers.limits import Limits
from edgewire.simulation.workers.node_host import NodeHost, NodeHostSpec, log, unavailable
from edgewire.simulation.workers.work_queue import WorkQueue
from edgewire.simulation.workers.worker import WINDOW, end_group, hold_stops, message_of, work

NO_LIMITS = Limits()
THREADED = frozenset({"jax", "tensorflow"})  # they start threads, so a forked child may deadlock
BULK = 8  # the most replies for which `get` waits in bulk; with 50, workers became idle


class InProcess:
    """A pool of one host in this process; it answers a message when `get` asks for a reply."""

    def __init__(self, spec: NodeHostSpec) -> None:
        self._host = NodeHost(spec)
        self._queue: deque[tuple[Message, bool]] = deque()

    def put(self, message: Message, *, anew: bool = False, due: float = 0.0) -> None:
        """Queue a message, which must have a unique `message_id`.

        `anew`: drop the node's state first. `due`: a hint. `Processes` first answers the messages
        with the lowest `due`.
        """
        self._queue.append((message, anew))

    def get(self, in_bulk: bool = False) -> Iterator[Message]:
        """Answer the oldest message, and yield the reply."""
        message, anew = self._queue.popleft()
        if anew:
            self._host.forget(message.metadata.dst_node_id)
        content = filled(RecordDict, values_of(content_of(message)))  # others may share the content
        yield self._host.answer(with_content(message, content))[0]

    def tend(self) -> None:
        """Do nothing: this pool has no workers."""

    def close(self) -> None:
        """Do nothing: this pool has no process to end."""

    def drain(self) -> Iterator[Message]:
        """Answer all queued messages; yield the replies that are not fetched yet."""
        while self._queue:
            yield from self.get()

    def states(self) -> dict[int, RecordDict]:
        """Return the nodes' states by node; all messages must have been answered.

        They are no copies: do not change them.
        """
        return self._host.states

    def load(self, states: Mapping[int, RecordDict]) -> None:
        """Load the nodes' states. Call it before the first message."""
        self._host.load(states)


@dataclass
class _Worker:
    process: Any
    connection: Connection
    messages: Channel
    replies: Channel
    inflight: dict[str, Message] = field(default_factory=dict)
    content: RecordDict | None = None  # the content that the worker received last


class Processes:
    """A pool of `count` hosts in worker processes, with one torch thread each."""

    def __init__(
        self, spec: NodeHostSpec, count: int, method: str | None = None, limits: Limits = NO_LIMITS
    ) -> None:
        self._spec, self._limits = spec, limits
        method = method or _start_method()
        self._mp: Any = multiprocessing.get_context(method)
        self._folders = Folders()
        self._started = 0
        self._workers: list[_Worker] = []
        self._ready = DefaultSelector()  # for the whole run: `wait` would create one for each reply
        for index in range(count):
            self._workers.append(self._start(index))
        self._queue = WorkQueue(count)
        self._anew = set[str]()
        self._replies: deque[Message] = deque()  # for the next `get`

    def put(self, message: Message, *, anew: bool = False, due: float = 0.0) -> None:
        """Queue the message; send queued messages once there are enough for all workers.

        Until then they wait for `tend` or `get`, so that a worker gets its messages together.
        """
        self._queue.put(message, due)
        if anew:
            self._anew.add(message.metadata.message_id)
        if len(self._queue) >= WINDOW * len(self._workers):
            self._feed_all()

    def get(self, in_bulk: bool = False) -> Iterator[Message]:
        """Wait for replies, send new messages to their workers, yield the replies.

        In bulk, it waits for several replies: at most half the number of queued messages, so that
        workers are rarely idle. Taking one reply at a time would interrupt the workers often. This
        would be slower, because the CPU's caches lose their contents.
        """
        self._feed_all()
        wanted = min(BULK, len(self._queue) // 2) if in_bulk else 1
        while len(self._replies) < max(wanted, 1) and self._queue.under_way:
            self._receive(block=True)
        while self._replies:
            yield self._replies.popleft()

    def drain(self) -> Iterator[Message]:
        """Wait for all messages under way; yield the replies."""
        while self._replies or self._queue.under_way:
            yield from self.get()

    def states(self) -> dict[int, RecordDict]:
        """Ask each worker for its nodes' states.

        Raises `OSError` if memory or disk space for the transfer is missing.
        """
        found: dict[int, RecordDict] = {}
        for index, worker in enumerate(self._workers):
            try:
                worker.messages.send(None)
                told, states, _ = worker.replies.receive()
            except (EOFError, OSError):  # the worker died, and its nodes' states are lost
                self._revive(index)
                continue
            if told is None:
                raise OSError(states)
            self._folders.tell_of(worker.replies)
            found |= states
        return found

    def load(self, states: Mapping[int, RecordDict]) -> None:
        """Restart the workers; each gets the states of a share of the nodes."""
        homes = {node: place % len(self._workers) for place, node in enumerate(sorted(states))}
        self._queue.restore_homes(homes)
        for index, worker in enumerate(self._workers):
            self._end(worker)
            own = {node: state for node, state in states.items() if homes[node] == index}
            self._workers[index] = self._start(index, own)

    def tend(self) -> None:
        """Take the replies that are ready; send queued messages to workers with room for them."""
        self._receive(block=False)
        self._feed_all()

    def _receive(self, block: bool) -> None:
        """Take the replies that are ready, or wait for one; send new messages to their workers."""
        for key, _ in self._ready.select(None if block else 0):
            index: int = key.data
            try:
                metadata, content, has_state = self._workers[index].replies.receive()
            except (EOFError, OSError):
                self._revive(index)
                continue
            if metadata is None:
                raise EngineError(content)
            self._folders.tell_of(self._workers[index].replies)
            message = self._workers[index].inflight.pop(metadata.reply_to_message_id)
            self._queue.answered(message.metadata.dst_node_id, has_state)
            self._feed_all()
            self._replies.append(message_of(content, metadata))

    def close(self) -> None:
        """End all workers; unfetched replies are lost."""
        for worker in self._workers:
            self._end(worker)
        self._ready.close()
        self._folders.close()

    def _start(self, index: int, states: Mapping[int, RecordDict] | None = None) -> _Worker:
        here, there = self._mp.Pipe()
        forks = self._mp.get_start_method() == "fork"
        others = [*(w.connection for w in self._workers), here] if forks else []
        self._started += 1
        folders, names = self._folders.paths, (f"in-{self._started}", f"out-{self._started}")
        process = self._mp.Process(
            target=work,
            args=(there, others, folders, names, self._spec, self._limits, index, states or {}),
            daemon=True,
        )
        hold_stops(signal.SIG_BLOCK)
        try:
            with nullcontext() if forks else found_first():
                process.start()
        finally:
            hold_stops(signal.SIG_UNBLOCK)
        there.close()
        self._ready.register(here, EVENT_READ, index)
        incoming, outgoing = (Channel(here, folders, name, WINDOW) for name in names)
        return _Worker(process, here, incoming, outgoing)

    def _feed_all(self) -> None:
        """Fill the workers in rotation, so that none gets two messages while another has none."""
        if not len(self._queue):
            return
        taken: list[list[Message]] = [[] for _ in self._workers]
        for depth in range(1, WINDOW + 1):
            for index, worker in enumerate(self._workers):
                room = len(worker.inflight) + len(taken[index]) < depth
                if room and (message := self._queue.take(index)) is not None:
                    taken[index].append(message)
        for worker, messages in zip(self._workers, taken, strict=True):
            self._send(worker, messages)

    def _send(self, worker: _Worker, messages: list[Message]) -> None:
        """Send messages together; omit a content that is the same as the message's before it."""
        together = []
        for message in messages:
            content, metadata = message.content, message.metadata
            fresh = worker.content is not content
            worker.content = content
            anew = metadata.message_id in self._anew
            self._anew.discard(metadata.message_id)
            together.append((content if fresh else None, metadata, anew))
            worker.inflight[metadata.message_id] = message
        if not together:
            return
        with suppress(OSError):  # the worker died; `get` will notice this
            worker.messages.send(together)
            self._folders.tell_of(worker.messages)

    def _revive(self, index: int) -> None:
        """Replace a dead worker; answer its messages with errors."""
        worker = self._workers[index]
        end_group(worker.process.pid)
        wait([worker.process.sentinel], timeout=5)  # it may still be ending
        self._end(worker)
        reason = f"its worker process died (exit code {worker.process.exitcode})"
        log.warning("worker %d: %s; started anew", index, reason)
        self._replies += [unavailable(m, reason) for m in worker.inflight.values()]
        self._queue.died(index, worker.inflight.values())
        self._workers[index] = self._start(index)
        self._feed_all()

    def _end(self, worker: _Worker) -> None:
        """End a worker, dead or alive, and remove its files."""
        if not worker.connection.closed:
            self._ready.unregister(worker.connection)
            worker.connection.close()
        worker.process.kill()  # a worker ignores other signals, and its work is not needed
        end_group(worker.process.pid)  # before `join` frees its process id for reuse
        worker.process.join()
        for channel in (worker.messages, worker.replies):
            channel.remove()


Pool = InProcess | Processes  # it returns replies in the order in which they are ready


def _start_method() -> str:
    """Return the start method: "fork" if it is safe, because it is fast and shares memory."""
    torch = sys.modules.get("torch")  # an app need not use torch
    cuda = torch is not None and torch.cuda.is_initialized()
    threaded = not THREADED.isdisjoint(sys.modules)
    return "fork" if sys.platform == "linux" and not cuda and not threaded else "spawn"


def make_pool(spec: NodeHostSpec, workers: int, limits: Limits = NO_LIMITS) -> Pool:
    """Return a pool of `workers` hosts. A single host without limits is in this process."""
    alone = workers <= 1 and limits == NO_LIMITS
    return InProcess(spec) if alone else Processes(spec, max(workers, 1), limits=limits)
