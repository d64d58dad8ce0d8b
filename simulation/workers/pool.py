"""Hosts in this process or in worker processes, behind one face."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Protocol

from flwr.app import Context, Message, RecordDict

from ..errors import EngineError
from .channel import Channel, Folders
from .limits import Limits
from .node_host import NodeHost, NodeHostSpec, log, unavailable
from .work_queue import WorkQueue
from .worker import WINDOW, end_group, hold_stops, message_of, work

NO_LIMITS = Limits()
THREADED = frozenset({"jax", "tensorflow"})  # start threads that a forked child would wait for
BULK = 8  # replies waited for at most, where many are welcome; with 50 few were left to compute


class Pool(Protocol):
    """Takes messages, gives replies in the order in which they become ready."""

    def put(self, message: Message, *, anew: bool = False, due: float = 0.0) -> None:
        """Take a message to be answered; its `message_id` is set and unique.

        `anew`: the node's state is dropped first. `due`: what is to be answered sooner has a lower
        number; a hint.
        """

    def get(self, in_bulk: bool = False) -> Iterator[Message]:
        """Wait for at least one reply; yield those that are ready.

        `in_bulk`: it may be waited for some more, while there is enough work for all.
        """

    def drain(self) -> Iterator[Message]:
        """Answer all that was taken; yield the replies that nobody has got yet."""

    def states(self) -> dict[int, RecordDict]:
        """Return what nodes keep, by node, once all was answered; to be read only.

        Raises `OSError` if there is no room for it on its way here.
        """

    def load(self, states: Mapping[int, RecordDict]) -> None:
        """Let nodes go on with what they have kept; before the first message."""

    def tend(self) -> None:
        """Send messages on to those who are out of work, and keep their replies; no waiting."""

    def close(self) -> None:
        """End the pool; replies not fetched are lost."""


class InProcess:
    """One host in this very process; a message is answered when its reply is asked for."""

    def __init__(self, spec: NodeHostSpec) -> None:
        self._host = NodeHost(spec)
        self._queue: deque[tuple[Message, bool]] = deque()

    def put(self, message: Message, *, anew: bool = False, due: float = 0.0) -> None:
        """Queue the message."""
        self._queue.append((message, anew))

    def get(self, in_bulk: bool = False) -> Iterator[Message]:
        """Answer and yield the oldest message."""
        message, anew = self._queue.popleft()
        if anew:
            self._host.forget(message.metadata.dst_node_id)
        yield self._host.answer(_private(message))[0]

    def drain(self) -> Iterator[Message]:
        """Answer and yield all that is queued."""
        while self._queue:
            yield from self.get()

    def states(self) -> dict[int, RecordDict]:
        """Return what nodes keep, the very records."""
        return self._host.states

    def load(self, states: Mapping[int, RecordDict]) -> None:
        """Let nodes go on with what they have kept."""
        self._host.load(states)

    def tend(self) -> None:
        """Nobody waits for work here."""

    @property
    def contexts(self) -> dict[int, Context]:
        """What nodes keep, by node; of those that keep something."""
        return self._host.contexts

    def close(self) -> None:
        """Nothing to end."""


def _private(message: Message) -> Message:
    """Return a message whose content dict is its own: many messages share one content."""
    return message_of(message.content.copy(), message.metadata)


@dataclass
class _Worker:
    process: Any
    connection: Connection
    messages: Channel
    replies: Channel
    inflight: dict[str, Message] = field(default_factory=dict)
    content: RecordDict | None = None  # what it was sent last


class Processes:
    """Hosts in `count` worker processes of one torch thread each."""

    def __init__(
        self, spec: NodeHostSpec, count: int, method: str | None = None, limits: Limits = NO_LIMITS
    ) -> None:
        self._spec, self._limits = spec, limits
        method = method or _start_method()
        self._mp: Any = multiprocessing.get_context(method)
        self._folders = Folders()
        self._started = 0
        self._workers: list[_Worker] = []
        self._ready = DefaultSelector()  # one for the run: `wait` would make one a reply
        for index in range(count):
            self._workers.append(self._start(index))
        self._queue = WorkQueue(count)
        self._anew = set[str]()
        self._replies: deque[Message] = deque()  # for the next `get`

    def put(self, message: Message, *, anew: bool = False, due: float = 0.0) -> None:
        """Queue the message, and set idle workers to work."""
        self._queue.put(message, due)
        if anew:
            self._anew.add(message.metadata.message_id)
        self._feed_all()

    def get(self, in_bulk: bool = False) -> Iterator[Message]:
        """Wait for replies, refill the workers that sent them, yield the replies.

        In bulk for at most half of what waits: then hardly anybody is out of work meanwhile. Who
        takes one reply at a time keeps interrupting a worker, and both find their caches cold.
        """
        if not self._replies and not self._queue.under_way:
            raise RuntimeError("there is nothing to wait for")
        wanted = min(BULK, len(self._queue) // 2) if in_bulk else 1
        while len(self._replies) < max(wanted, 1) and self._queue.under_way:
            self._receive(wait=True)
        while self._replies:
            yield self._replies.popleft()

    def drain(self) -> Iterator[Message]:
        """Wait for all that is under way; yield the replies."""
        while self._replies or self._queue.under_way:
            yield from self.get()

    def states(self) -> dict[int, RecordDict]:
        """Ask each worker for what its nodes keep."""
        found: dict[int, RecordDict] = {}
        for index, worker in enumerate(self._workers):
            try:
                worker.messages.send((None, None, False))
                told, states, _ = worker.replies.receive()
            except (EOFError, OSError):  # it died, and what its nodes kept with it
                self._revive(index)
                continue
            if told is None:
                raise OSError(states)
            self._folders.tell_of(worker.replies)
            found |= states
        return found

    def load(self, states: Mapping[int, RecordDict]) -> None:
        """Start the workers anew, each with a share of the nodes and of what they have kept."""
        homes = {node: place % len(self._workers) for place, node in enumerate(sorted(states))}
        self._queue.settle(homes)
        for index, worker in enumerate(self._workers):
            self._end(worker)
            own = {node: state for node, state in states.items() if homes[node] == index}
            self._workers[index] = self._start(index, own)

    def tend(self) -> None:
        """Take replies that are ready, refill the workers that sent them."""
        self._receive(wait=False)

    def _receive(self, wait: bool) -> None:
        """Take the replies that are ready, or wait for one; send on to who has room."""
        for key, _ in self._ready.select(None if wait else 0):
            index: int = key.data
            try:
                message_id, content, has_state = self._workers[index].replies.receive()
            except (EOFError, OSError):
                self._revive(index)
                continue
            if message_id is None:
                raise EngineError(content)
            self._folders.tell_of(self._workers[index].replies)
            message = self._workers[index].inflight.pop(message_id)
            self._queue.answered(message.metadata.dst_node_id, has_state)
            self._feed(index, WINDOW)
            self._replies.append(Message(content, reply_to=message))

    def close(self) -> None:
        """End all workers."""
        self._ready.close()
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()  # it hears no other signal; nobody waits for its work
            end_group(worker.process.pid)
        for worker in self._workers:
            worker.process.join()
        self._folders.close()

    def _start(self, index: int, states: Mapping[int, RecordDict] | None = None) -> _Worker:
        here, there = self._mp.Pipe()
        others = [w.connection for w in self._workers] + [here]
        others = others if self._mp.get_start_method() == "fork" else []
        self._started += 1
        folders, names = self._folders.paths, (f"in-{self._started}", f"out-{self._started}")
        process = self._mp.Process(
            target=work,
            args=(there, others, folders, names, self._spec, self._limits, index, states or {}),
            daemon=True,
        )
        hold_stops(signal.SIG_BLOCK)
        try:
            process.start()
        finally:
            hold_stops(signal.SIG_UNBLOCK)
        there.close()
        self._ready.register(here, EVENT_READ, index)
        incoming, outgoing = (Channel(here, folders, name, WINDOW) for name in names)
        return _Worker(process, here, incoming, outgoing)

    def _feed_all(self) -> None:
        """Send one message to each in turn, so that no worker takes two while another has none."""
        for depth in range(1, WINDOW + 1):
            for index in range(len(self._workers)):
                self._feed(index, depth)

    def _feed(self, index: int, depth: int) -> None:
        """Send a worker messages until `depth` are with it."""
        worker = self._workers[index]
        while len(worker.inflight) < depth and (message := self._queue.take(index)) is not None:
            try:
                self._send(worker, message)
            except OSError:  # it died; get() will notice and report
                worker.inflight[message.metadata.message_id] = message
                return
            worker.inflight[message.metadata.message_id] = message

    def _send(self, worker: _Worker, message: Message) -> None:
        """Send a message; its content only if the worker does not have it from another one."""
        content, metadata = message.content, message.metadata
        fresh = worker.content is not content
        worker.content = content
        anew = metadata.message_id in self._anew
        self._anew.discard(metadata.message_id)
        worker.messages.send((content if fresh else None, metadata, anew))
        self._folders.tell_of(worker.messages)

    def _revive(self, index: int) -> None:
        """Replace a worker that died; what it was working on is answered by errors."""
        worker = self._workers[index]
        end_group(worker.process.pid)  # before its number is free
        worker.process.join(timeout=5)
        reason = f"its worker process died (exit code {worker.process.exitcode})"
        log.warning("worker %d: %s; started anew", index, reason)
        self._replies += [unavailable(m, reason) for m in worker.inflight.values()]
        self._queue.died(index, worker.inflight.values())
        self._end(worker)
        self._workers[index] = self._start(index)
        self._feed_all()

    def _end(self, worker: _Worker) -> None:
        """End a worker, dead or alive, that another one takes the place of."""
        self._ready.unregister(worker.connection)
        worker.connection.close()
        if worker.process.exitcode is None:
            worker.process.kill()
            end_group(worker.process.pid)
        worker.process.join()
        for channel in (worker.messages, worker.replies):
            channel.remove()


def _start_method() -> str:
    """Return "fork", which starts in milliseconds and shares loaded data, where it is safe."""
    torch = sys.modules.get("torch")  # an app may do without
    cuda = torch is not None and torch.cuda.is_initialized()
    threaded = not THREADED.isdisjoint(sys.modules)
    return "fork" if sys.platform == "linux" and not cuda and not threaded else "spawn"


def make_pool(spec: NodeHostSpec, workers: int, limits: Limits = NO_LIMITS) -> Pool:
    """Return a pool of `workers` hosts: in this process for 1 without limits, else in processes."""
    alone = workers <= 1 and limits == NO_LIMITS
    return InProcess(spec) if alone else Processes(spec, max(workers, 1), limits=limits)
