"""Extends Flower's `Grid`: a clock, deadlines, a fixed order of nodes, when the next node appears.

`TimedGrid` declares the methods. A grid on a virtual clock implements these methods itself. For any
other grid, `timed` returns a `TimedGrid` that polls the grid in real time. A class that wraps a
grid derives from `GridWrapper`, which forwards all methods. `AdaptiveTimeout` sets deadlines, so
that a node that does not reply cannot stall the server.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from logging import getLogger
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flwr.app import Message
from flwr.serverapp import Grid

from ..validation import FOREVER
from .node_names import called
from .traffic import in_one_line

if TYPE_CHECKING:  # earlier versions of Flower have these in other modules, or lack them
    from flwr.proto.node_pb2 import NodeInfo

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two polls for replies
TIMES, LEAST = 10.0, 60.0  # the factor on the time of other replies; the least limit in seconds
FIRST = 3600.0  # the limit in seconds before the first reply
log = getLogger("edgewire")
F = TypeVar("F", bound=Callable[..., Any])


class TimedGrid(Grid):
    """Flower's `Grid` with the methods that a server needs in simulation and in deployment.

    A method that needs a virtual clock does nothing here: this is right for grids in real time.
    """

    @property
    def virtual_seconds(self) -> float | None:
        """The time of the virtual clock, in seconds since the run began; None in real time."""
        return None

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since a fixed moment, in virtual or real time; deadlines are compared with it."""

    @property
    def next_change(self) -> float | None:
        """The moment (as in `now`) at which the next node appears.

        Infinity: no node will appear. None: unknown, as in real time.
        """
        return None

    @abstractmethod
    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the present nodes, ordered by data partition."""

    @abstractmethod
    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages and return their ids; a node must start on one within `ttl` seconds."""

    @abstractmethod
    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies to these messages; return an empty list at the deadline.

        `deadline`: the moment, as in `now`. Do not pass the id of a message again after its reply
        was returned.
        """

    def drop_replies(self, message_ids: Iterable[str]) -> None:
        """Tell the grid that the replies to these messages will not be pulled."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return the replies that arrive within `timeout` seconds (`gathered`)."""
        return gathered(self, list(messages), math.inf if timeout is None else timeout)

    def tend(self) -> None:
        """Send queued messages to idle worker processes; call `tend` before a long computation."""

    def follow(self, plain_bytes: int) -> None:
        """Start to estimate the time of the run without compression, with models of `plain_bytes`.

        Messages without compression lack the record `HEADER`, too.
        """

    @property
    def comparison(self) -> Mapping[str, float | None]:
        """The estimated time without compression (`follow`), as fields of a run's result."""
        return {}


def timed(grid: Grid) -> TimedGrid:
    """Return the grid itself if it is a `TimedGrid`, else a `PolledGrid` around it.

    The check reads attributes of the grid's class. A check of the instance would call the
    properties.
    """
    declared = (name for name in vars(TimedGrid) if not name.startswith("_"))
    if all(hasattr(type(grid), name) for name in declared):
        return cast(TimedGrid, grid)
    return PolledGrid(grid)


def _forwarded(method: F) -> F:
    """Return a method that calls the method with the same name of the grid inside."""

    @wraps(method, updated=())  # without the mark of abstract methods
    def forwarded(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self._grid, method.__name__)(*arguments, **options)

    return cast(F, forwarded)


class _Forwarding(TimedGrid):
    """Forwards the methods of Flower's `Grid` to the grid inside."""

    _grid: Grid
    run: Any = property(attrgetter("_grid.run"))
    set_run = _forwarded(Grid.set_run)
    create_message = _forwarded(Grid.create_message)
    pull_messages = _forwarded(Grid.pull_messages)

    def get_nodes(self) -> Iterable[NodeInfo]:  # which earlier versions of Flower lack
        """Return Flower's descriptions of the present nodes."""
        return self._grid.get_nodes()


class GridWrapper(_Forwarding):
    """Base class of grids that wrap another grid; forwards all methods of `TimedGrid` to it.

    A derived class may define `_received`, to see or to replace the replies that are pulled.
    """

    _grid: TimedGrid
    now: Any = property(attrgetter("_grid.now"))
    next_change: Any = property(attrgetter("_grid.next_change"))
    virtual_seconds: Any = property(attrgetter("_grid.virtual_seconds"))
    comparison: Any = property(attrgetter("_grid.comparison"))
    get_node_ids = _forwarded(TimedGrid.get_node_ids)
    push_messages = _forwarded(TimedGrid.push_messages)
    drop_replies = _forwarded(TimedGrid.drop_replies)
    tend = _forwarded(TimedGrid.tend)
    follow = _forwarded(TimedGrid.follow)

    def __init__(self, grid: Grid) -> None:
        self._grid = timed(grid)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived."""
        return self._received(self._grid.pull_messages(message_ids))

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies; return none at the deadline (`TimedGrid.pull_before`)."""
        return self._received(self._grid.pull_before(message_ids, deadline))

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        return list(replies)


class PolledGrid(_Forwarding):
    """A `TimedGrid` in real time, which polls one of Flower's grids for replies.

    Flower's node ids are random. Its simulation registers the nodes in the order of their
    partitions, 0 to n - 1. So this grid orders the nodes by time of registration.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known: dict[int, str] = {}  # node -> when it registered

    @property
    def now(self) -> float:
        """Real seconds since a fixed moment."""
        return time.monotonic()

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the present nodes, by time of registration or, if unknown, by id."""
        ids = list(self._grid.get_node_ids())
        if hasattr(Grid, "get_nodes") and any(node not in self._known for node in ids):
            self._known = {n.node_id: n.registered_at for n in self._grid.get_nodes()}
        return sorted(ids, key=lambda node: (self._known.get(node, ""), node))

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages and return their ids; a message expires after at most `ttl` seconds."""
        messages = list(messages)
        if ttl < math.inf:
            for message in messages:
                message.metadata.ttl = min(ttl, message.metadata.ttl)
        return self._grid.push_messages(messages)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Ask for replies, with growing pauses, until some arrive or the deadline is over."""
        ids, pause = list(message_ids), FIRST_PAUSE
        if not ids and deadline == math.inf:  # no reply can arrive
            return []
        while not (replies := list(self._grid.pull_messages(ids))):
            left = deadline - self.now
            if left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return replies


class SlowestReply:
    """The time of the slowest reply so far to messages of one type, in real seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: unknown

    def took(self, seconds: float) -> None:
        """Record that a reply took this many seconds."""
        self.seconds = max(self.seconds, seconds)

    def limit(self, grid: TimedGrid, timeout: float) -> float:
        """Return how many seconds to wait for a reply: `timeout`, if it is below `FOREVER`, or inf.

        Otherwise, in real time, the limit is the time of the slowest reply so far multiplied by
        `TIMES`, but at least `LEAST` seconds; before the first reply it is `FIRST` seconds. There
        is no limit on a virtual clock.
        """
        if not FOREVER <= timeout < math.inf or grid.virtual_seconds is not None:
            return timeout
        return max(TIMES * self.seconds, LEAST) if self.seconds else FIRST


class AdaptiveTimeout:
    """The deadline for the replies to the messages of one call.

    A `timeout` is measured from the start of the call. Without a timeout, the times of replies to
    earlier calls determine the limit (`SlowestReply.limit`). In the first call, the time of the
    first half of the replies determines the limit.
    """

    def __init__(
        self, grid: TimedGrid, timeout: float, asked: int, slowest: SlowestReply | None = None
    ) -> None:
        self._grid, self._asked, self._began = grid, asked, grid.now
        self._slowest = SlowestReply() if slowest is None else slowest
        self._real, known = grid.virtual_seconds is None, self._slowest.seconds
        self._adapts = FOREVER <= timeout < math.inf and self._real and not known
        self.deadline = grid.now + self._slowest.limit(grid, timeout)
        self._named = grid.now + max(2 * known, LEAST) if self._real else math.inf

    def pull(self, waiting: Mapping[str, int]) -> list[Message]:
        """Wait for the next replies; return an empty list at the deadline.

        `waiting`: message id -> node, of all messages without a reply. In real time the log names
        these nodes once, after `LEAST` seconds or twice the time of the slowest reply so far.
        """
        if self._named < self.deadline:
            if arrived := self._grid.pull_before(waiting, self._named):
                return arrived
            self._warn("the server still waits, at most %.0f s, for", self.deadline, waiting)
            self._named = math.inf
        arrived = self._grid.pull_before(waiting, self.deadline)
        if self._real and not arrived:
            self._warn("no reply within %.0f s (timeout=) from", self._grid.now, waiting)
        return arrived

    def _warn(self, text: str, until: float, waiting: Mapping[str, int]) -> None:
        nodes = in_one_line(", ".join(map(called, waiting.values())))
        log.warning(f"{text} %s", until - self._began, nodes)

    def received(self, replies: int) -> None:
        """Record that `replies` replies have arrived so far."""
        took = self._grid.now - self._began
        self._slowest.took(took)
        if self._adapts and 2 * replies >= self._asked > replies:
            self.deadline = self._grid.now + max(TIMES * took, LEAST)


def gathered(
    grid: TimedGrid,
    messages: Sequence[Message],
    timeout: float,
    slowest: SlowestReply | None = None,
) -> list[Message]:
    """Send messages; return the replies before the deadline (`AdaptiveTimeout`), in their order.

    The timeout is also the messages' time to live, so no node begins with one after it.
    """
    limit = AdaptiveTimeout(grid, timeout, len(messages), slowest)
    sent = {*grid.push_messages(messages, timeout)}  # without those to absent nodes
    about = [message.metadata for message in messages]
    waiting = {each.message_id: each.dst_node_id for each in about if each.message_id in sent}
    places, found = {each: place for place, each in enumerate(waiting)}, list[Message]()
    while waiting and (arrived := limit.pull(waiting)):
        found += arrived
        for reply in arrived:
            waiting.pop(reply.metadata.reply_to_message_id, None)
        limit.received(len(found))
    grid.drop_replies(waiting)
    return sorted(found, key=lambda reply: places.get(reply.metadata.reply_to_message_id, -1))
