"""Extends Flower's `Grid` by time, deadlines, a fixed order of nodes, and times of new nodes.

`TimedGrid` declares the methods. A grid on a virtual clock implements them itself; `timed` makes a
`TimedGrid` of any other grid, by polling it in real time. A wrapper of grids derives from
`GridWrapper`, which forwards all methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:  # earlier versions of Flower have these elsewhere, or not
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.supercore.run import Run

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two polls for replies


class TimedGrid(Protocol):
    """Flower's `Grid`, and what a server needs to behave the same on every engine."""

    @property
    def virtual_seconds(self) -> float | None:
        """The virtual clock, seconds since the run began; None where time is real."""

    @property
    def now(self) -> float:
        """Seconds since a fixed moment, virtual on a virtual clock; the unit of deadlines."""

    @property
    def next_change(self) -> float | None:
        """The value of `now` when the next node appears; infinity: none will; None: unknown."""

    def get_node_ids(self) -> Sequence[int]:
        """Return the present nodes, by partition: the same order on every engine."""

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages, which nodes must begin within `ttl` seconds; return the messages' ids."""

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies to these messages; return an empty list at the deadline.

        `deadline`: a value of `now`. Do not pass ids of messages whose replies were fetched.
        """

    def tend(self) -> None:
        """Keep nodes in this machine's processes busy; call it if the next pull is far away."""

    def follow(self, plain_bytes: int, note: str = "") -> None:
        """Compare what is sent from now on with models of `plain_bytes` in place of payloads.

        `note`: the name of the header's record.
        """

    @property
    def comparison(self) -> Mapping[str, float | None]:
        """The comparison as fields of a run's result; empty if nothing is compared."""

    # Flower's own

    @property
    def run(self) -> Run:
        """The run."""

    def set_run(self, run: Run) -> None:
        """Set the run."""

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's old way)."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what is known of the nodes that are there."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""


def timed(grid: Grid | TimedGrid) -> TimedGrid:
    """Return the grid itself if it is a `TimedGrid`, else a `PolledGrid` around it.

    The check looks at the grid's class, because reading an instance's properties would call them.
    """
    declared = (name for name in vars(TimedGrid) if not name.startswith("_"))
    if all(hasattr(type(grid), name) for name in declared):
        return cast(TimedGrid, grid)
    return PolledGrid(cast(Grid, grid))


class _Forwarding(Grid):
    """Forwards the methods of Flower's own `Grid`."""

    _grid: Grid | TimedGrid

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's old way)."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what is known of the nodes that are there."""
        return self._grid.get_nodes()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class GridWrapper(_Forwarding):
    """A `TimedGrid` around any grid that forwards everything; a base class of wrappers."""

    _grid: TimedGrid

    def __init__(self, grid: Grid | TimedGrid) -> None:
        self._grid = timed(grid)

    @property
    def virtual_seconds(self) -> float | None:
        """See `TimedGrid`."""
        return self._grid.virtual_seconds

    @property
    def now(self) -> float:
        """See `TimedGrid`."""
        return self._grid.now

    @property
    def next_change(self) -> float | None:
        """See `TimedGrid`."""
        return self._grid.next_change

    def get_node_ids(self) -> Sequence[int]:
        """See `TimedGrid`."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """See `TimedGrid`."""
        return self._grid.push_messages(messages, ttl)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """See `TimedGrid`."""
        return self._grid.pull_before(message_ids, deadline)

    def tend(self) -> None:
        """See `TimedGrid`."""
        self._grid.tend()

    def follow(self, plain_bytes: int, note: str = "") -> None:
        """See `TimedGrid`."""
        self._grid.follow(plain_bytes, note)

    @property
    def comparison(self) -> Mapping[str, float | None]:
        """See `TimedGrid`."""
        return self._grid.comparison


class PolledGrid(_Forwarding):
    """A `TimedGrid` in real time over a grid of Flower's, which it polls for replies.

    Flower's node ids are random, but its simulation registers partitions 0 to n - 1 in turn. So
    this grid orders nodes by time of registration.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known: dict[int, str] = {}  # node -> when it registered

    @property
    def virtual_seconds(self) -> None:
        """None: time is real."""

    @property
    def now(self) -> float:
        """Real seconds since a fixed moment."""
        return time.monotonic()

    @property
    def next_change(self) -> None:
        """None: unknown."""

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the present nodes, by time of registration if that is known."""
        ids = list(self._grid.get_node_ids())
        if hasattr(Grid, "get_nodes") and any(node not in self._known for node in ids):
            self._known = {n.node_id: n.registered_at for n in self._grid.get_nodes()}
        return sorted(ids, key=lambda node: (self._known.get(node, ""), node))

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages; shorten their time to live to `ttl` seconds where it is longer."""
        messages = list(messages)
        if ttl < math.inf:
            for message in messages:
                message.metadata.ttl = min(ttl, message.metadata.ttl)
        return self._grid.push_messages(messages)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Poll until there are replies, or until the deadline, with growing pauses."""
        ids, pause = list(message_ids), FIRST_PAUSE
        if not ids and deadline == math.inf:  # no reply would ever come
            return []
        while not (replies := list(self._grid.pull_messages(ids))):
            left = deadline - self.now
            if left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return replies

    def tend(self) -> None:
        """Do nothing: Flower's nodes run by themselves."""

    def follow(self, plain_bytes: int, note: str = "") -> None:
        """Do nothing: a comparison needs a virtual clock."""

    @property
    def comparison(self) -> Mapping[str, float | None]:
        """Empty."""
        return {}
