"""Collects a round's replies until enough have arrived or the timeout ends; tracks stragglers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message

from edgewire.compression.flower.records import metadata_of
from edgewire.compression.flower.timed_grid import AdaptiveTimeout, SlowestReply
from edgewire.strategy.ordered_grid import OrderedGrid

LEAST = 4  # up to this number of late messages, the server does not look for their replies


class LateMessage(NamedTuple):
    """The node and the round of a message that had no reply when its round ended."""

    node: int
    number: int


@dataclass
class Stragglers:
    """Stores messages whose round ended before the reply, until the reply arrives or cannot arrive.

    Such a message, and its reply, is called late. A late reply is not applied, and the server's
    next message to the node says so. This class still fetches late replies, so that the SuperLink
    can delete them. It fetches them whenever the number of late messages has grown by a quarter
    since the last time. A node replies in order. So a message is lost if it is older than the last
    message that the node replied to.

    A checkpoint holds it. `messages`: the late messages by message id. `newest`: by node, the round
    of the last message that it replied to. `most`: above this number of messages, replies are
    fetched.
    """

    messages: dict[str, LateMessage] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    most: int = LEAST

    def answered(self, node: int, number: int) -> None:
        """Record that a node has replied to its message of round `number`."""
        self.newest[node] = max(number, self.newest.get(node, 0))

    def add(self, grid: OrderedGrid, message_id: str, node: int, number: int) -> None:
        """Add a late message of round `number` to a node; the rounds must increase."""
        self.messages[message_id] = LateMessage(node, number)
        if len(self.messages) > self.most:
            self.clear(grid)
            self.most = max(LEAST, 5 * len(self.messages) // 4)

    def clear(self, grid: OrderedGrid) -> None:
        """Fetch the replies that have arrived, and delete messages whose replies cannot arrive."""
        for reply in grid.pull_before(self.messages, grid.now):
            self.answered(*self.messages[reply.metadata.reply_to_message_id])
            grid.discard(reply)
        for key, sent in [*self.messages.items()]:
            if sent.number <= self.newest.get(sent.node, 0):
                del self.messages[key]


LONGEST = 8  # the longest backoff, in rounds, of a node that does not reply


@dataclass
class RoundCollectorState:
    """The state of `RoundCollector`.

    `round`: the number of rounds so far. `missed`: by node, the number of its consecutive rounds
    without a reply. `again`: by node, the first round in which the server may ask it again. `late`:
    the messages that had no reply when their round ended.
    """

    round: int = 0
    missed: Counter[int] = field(default_factory=Counter)
    again: dict[int, int] = field(default_factory=dict)
    late: Stragglers = field(default_factory=Stragglers)


class RoundCollector:
    """Sends a round's messages over a grid, collects the replies, and leaves out late replies.

    Backup workers (Chen et al. 2016, "Revisiting distributed synchronous SGD"): with a quorum, the
    slowest nodes do not delay a round. A codec with a residual does not lose a late update. The
    server's next message to the node says that the update was not applied, and the node adds the
    update back to its residual.
    """

    def __init__(self, grid: OrderedGrid, state: RoundCollectorState | None = None) -> None:
        self._grid = grid
        self._state = RoundCollectorState() if state is None else state
        self._slowest = SlowestReply()
        self.time_was_up = False  # True if the last round ended by its timeout, not by its quorum
        self.seconds: dict[int, float] = {}  # of the last round: from sending to reply, by node
        self.lasted = 0.0  # seconds of the last round

    def resting(self) -> set[int]:
        """Return the nodes that the server must not ask in the next round.

        Backoff: if a node has not replied in m consecutive rounds, the server asks it again after
        min(m, `LONGEST`) rounds. So a node that is always late does not have a growing queue of
        unread messages.
        """
        return {node for node, when in self._state.again.items() if when > self._state.round + 1}

    def __call__(self, messages: list[Message], quorum: int, timeout: float) -> dict[int, Message]:
        """Send messages, and return the replies by node.

        The method returns when all nodes have replied, when `quorum` replies that are not errors
        have arrived, or after the timeout. `timeout`: seconds, in virtual time on a virtual clock.
        """
        grid = self._grid
        limit = AdaptiveTimeout(grid, timeout, len(messages), self._slowest)
        # The timeout is also the messages' time to live, so no node gets a message after it.
        began, self.seconds = grid.now, {}
        ids = grid.push_messages(messages, timeout)
        waiting = {i: metadata_of(m)["_dst_node_id"] for i, m in zip(ids, messages, strict=True)}
        replies, good = dict[int, Message](), 0
        while waiting and good < quorum and (arrived := limit.pull(waiting)):
            now = grid.now - began
            for message in arrived:
                node = waiting.pop(metadata_of(message)["_reply_to_message_id"])
                replies[node], self.seconds[node] = message, now
                good += not message.has_error()
            limit.received(len(replies))
        self._state.round += 1
        self.lasted = grid.now - began
        self.time_was_up = bool(waiting) and grid.now >= limit.deadline
        self._remember(waiting, set(replies))
        return replies

    def _remember(self, waiting: dict[str, int], answered: set[int]) -> None:
        """After a round, update the nodes' backoff and the late messages.

        `waiting`: the messages without a reply.
        """
        state = self._state
        for node in answered:
            state.late.answered(node, state.round)
            state.missed.pop(node, None)
            state.again.pop(node, None)
        for message_id, node in waiting.items():
            state.late.add(self._grid, message_id, node, state.round)
            state.missed[node] += 1
            state.again[node] = state.round + min(state.missed[node], LONGEST)
