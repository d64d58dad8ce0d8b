"""What a grid can do beyond Flower's `Grid`: time, deadlines, an order of nodes, word of new ones.

`TimedGrid` declares it. A grid on a virtual clock satisfies it by itself; `timed` makes one of any
other, by polling it in real time. A wrapper of grids derives from `GridWrapper`, which hands all of
it on.
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
    """Flower's `Grid`, and what a server needs that is to run the same on every engine."""

    @property
    def virtual_seconds(self) -> float | None:
        """The virtual clock, seconds since the run began; None where time is real."""

    @property
    def now(self) -> float:
        """Seconds since some moment, virtual ones on a virtual clock: deadlines are given in it."""

    @property
    def next_change(self) -> float | None:
        """The moment of `now` when a node comes next; infinity: none will; None: nobody knows."""

    def get_node_ids(self) -> Sequence[int]:
        """Return the nodes that are there, by partition: the same order on every engine."""

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages, which no node is to begin with after `ttl` seconds; return their ids."""

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies to these messages; return none if none is there by then.

        `deadline`: a moment of `now`. Ids of replies already fetched are not to be given.
        """

    def tend(self) -> None:
        """Keep nodes in this machine's processes at work; for who is long in pulling."""

    def follow(self, plain_bytes: int, note: str = "") -> None:
        """Compare what is sent from here on with models of so many bytes in place of payloads.

        `note`: the name of the record that goes with payloads.
        """

    @property
    def comparison(self) -> Mapping[str, float | None]:
        """What came out, fields of a run's result; empty where nothing is compared."""

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
    """Return a grid that can do all of it: this one if it can, else one that polls it.

    Its class says whether it can: to look at an instance's properties would be to call them.
    """
    declared = (name for name in vars(TimedGrid) if not name.startswith("_"))
    if all(hasattr(type(grid), name) for name in declared):
        return cast(TimedGrid, grid)
    return PolledGrid(cast(Grid, grid))


class _Forwarding(Grid):
    """Hands the methods of Flower's own `Grid` on."""

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
    """A `TimedGrid` around any grid, which hands everything on; made to be derived from."""

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
    """A `TimedGrid` in real time, over a grid of Flower's: replies are polled for.

    Flower's ids are random, but its simulation registers partitions 0 to n - 1 in turn: nodes are
    in the order in which they registered.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known: dict[int, str] = {}  # node -> when it registered

    @property
    def virtual_seconds(self) -> None:
        """None: time is real."""

    @property
    def now(self) -> float:
        """Real seconds since some moment."""
        return time.monotonic()

    @property
    def next_change(self) -> None:
        """None: nobody knows."""

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the nodes that are there, by time of registration if that is known."""
        ids = list(self._grid.get_node_ids())
        if hasattr(Grid, "get_nodes") and any(node not in self._known for node in ids):
            self._known = {n.node_id: n.registered_at for n in self._grid.get_nodes()}
        return sorted(ids, key=lambda node: (self._known.get(node, ""), node))

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages; `ttl` becomes theirs where theirs is longer."""
        messages = list(messages)
        if ttl < math.inf:
            for message in messages:
                message.metadata.ttl = min(ttl, message.metadata.ttl)
        return self._grid.push_messages(messages)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Poll until there are replies, or until the deadline: in ever longer pauses."""
        ids, pause = list(message_ids), FIRST_PAUSE
        if not ids and deadline == math.inf:  # nothing would ever come
            return []
        while not (replies := list(self._grid.pull_messages(ids))):
            left = deadline - self.now
            if left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return replies

    def tend(self) -> None:
        """Flower's nodes need no tending."""

    def follow(self, plain_bytes: int, note: str = "") -> None:
        """Nothing is compared: it would take a virtual clock."""

    @property
    def comparison(self) -> Mapping[str, float | None]:
        """Empty."""
        return {}
