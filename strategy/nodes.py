"""The nodes as strategies see them: waited for, and in an order that every engine agrees on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two polls for replies
LOCAL = (range, tuple)  # what a local grid's ids come in: the order of their partitions
LOOK_AGAIN = 5.0  # seconds from one look for new nodes to the next


def count_nodes(grid: Grid) -> int:
    """Return how many nodes there are, once there are any and no more have come for a while."""
    nodes = grid.get_node_ids()
    if isinstance(nodes, LOCAL):
        return len(nodes)
    before, count = 0, sum(1 for _ in nodes)
    while count != before or not count:
        time.sleep(0.5)
        before, count = count, sum(1 for _ in grid.get_node_ids())
    return count


class OrderedGrid(Grid):
    """A grid whose `get_node_ids` are in the order in which the nodes registered.

    Strategies sample positions in that list. Flower's ids are random, but its simulation registers
    partitions 0 to n - 1 in turn, so that the same seed draws the same partitions on every engine.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known: dict[int, str] = {}  # node -> when it registered

    @property
    def virtual_seconds(self) -> float | None:
        """The virtual clock of a local grid, seconds; None where time is real."""
        return getattr(self._grid, "virtual_seconds", None)

    def follow(self, plain_bytes: int) -> None:
        """Let a local grid compare what is sent with whole models of so many bytes."""
        if follow := getattr(self._grid, "follow", None):
            follow(plain_bytes)

    @property
    def comparison(self) -> dict[str, float | None]:
        """What a local grid found: virtual seconds over a line, with and without compression."""
        found = getattr(self._grid, "comparison", None)
        return {} if found is None else found._asdict()

    @property
    def now(self) -> float:
        """Seconds since some moment: virtual ones on a local grid, else real ones."""
        virtual = self.virtual_seconds
        return time.monotonic() if virtual is None else virtual

    @property
    def next_look(self) -> float:
        """The moment of `now` at which to look for new nodes again; infinity: none will come."""
        change: float | None = getattr(self._grid, "next_change", None)
        return self.now + LOOK_AGAIN if change is None else change

    def tend(self) -> None:
        """Let a local grid's workers have new messages for answers; for who is long in pulling."""
        if tend := getattr(self._grid, "tend", None):
            tend()

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

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

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are there, by time of registration."""
        ids = self._grid.get_node_ids()
        if isinstance(ids, LOCAL):
            return ids
        ids = list(ids)
        if any(node not in self._known for node in ids):
            self._known = {n.node_id: n.registered_at for n in self._grid.get_nodes()}
        return sorted(ids, key=lambda node: (self._known.get(node, ""), node))

    def wait_for_nodes(self) -> list[int]:
        """Return the ids of the nodes that are there, once there is one; none if none will come."""
        while not (nodes := list(self.get_node_ids())):
            if self.next_look == math.inf:
                break
            if self.virtual_seconds is None:
                time.sleep(1)  # for the first node to come, or to come back
            else:
                self.pull_before([], self.next_look)
        return nodes

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Send messages, which no node is to begin with after `ttl` seconds of `now`."""
        if ttl == math.inf:
            return self._grid.push_messages(messages)
        if self.virtual_seconds is not None:
            own: Callable[..., list[str]] = self._grid.push_messages  # type: ignore[assignment]
            return own(messages, ttl=ttl)
        messages = list(messages)
        for message in messages:
            message.metadata.ttl = min(ttl, message.metadata.ttl)
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies."""
        return self._grid.pull_messages(message_ids)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies to these messages; return none if none is there by `deadline`.

        The deadline is a moment of `now`. Ids of replies already fetched are not to be given.
        """
        own: Callable[..., list[Message]] | None = getattr(self._grid, "pull_before", None)
        if own is not None:  # a local grid's: it goes on to that moment
            return own(message_ids, deadline)
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

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)
