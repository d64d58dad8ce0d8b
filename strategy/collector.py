"""One round's messages out, the replies in: until enough are there, or the time is up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from flwr.app import Message

from compression.flower.timeouts import AdaptiveTimeout, Slowest
from strategy.ordered_grid import OrderedGrid

LEAST = 4  # so many are left alone


@dataclass
class StragglersState:
    """`messages`: their nodes, their numbers; `answered`: node -> the number of its last answered
    message; `most`: of messages, before they are looked for.
    """

    messages: dict[str, tuple[int, int]] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    most: int = LEAST


class Stragglers:
    """Keeps these messages until they are answered after all, or will not be any more.

    Their replies are of no use, but fetched, so that nobody keeps them: each time a quarter more
    are late than were left the last time. (A node's next message tells it what was not applied.) A
    node answers in order: what it owes from before its last reply is lost.
    """

    def __init__(self, grid: OrderedGrid, state: StragglersState | None = None) -> None:
        self._grid = grid
        self._state = StragglersState() if state is None else state

    def __len__(self) -> int:
        return len(self._state.messages)

    def answered(self, node: int, number: int) -> None:
        """Note that a node has answered a message."""
        self._state.answered[node] = max(number, self._state.answered.get(node, 0))

    def add(self, message_id: str, node: int, number: int) -> None:
        """Take a message of a node, whose numbers increase."""
        self._state.messages[message_id] = node, number
        if len(self._state.messages) > self._state.most:
            self.clear()
            self._state.most = max(LEAST, 5 * len(self._state.messages) // 4)

    def forget(self, nodes: set[int]) -> None:
        """Forget nodes that are gone, and what they were sent."""
        state = self._state
        state.messages = {key: sent for key, sent in state.messages.items() if sent[0] not in nodes}
        for node in nodes:
            state.answered.pop(node, None)

    def clear(self) -> None:
        """Fetch what has come; forget what will come no more."""
        for reply in self._grid.pull_before(self._state.messages, self._grid.now):
            self.answered(*self._state.messages[reply.metadata.reply_to_message_id])
        self._state.messages = {
            message_id: (node, number)
            for message_id, (node, number) in self._state.messages.items()
            if number > self._state.answered.get(node, 0)
        }


LONGEST = 8  # rounds from one that a node has not answered to the next in which it is asked


@dataclass
class RoundCollectorState:
    """`missed`: node -> rounds in a row without its reply; `again`: node -> the round in which it
    may be asked again.
    """

    round: int = 0
    missed: Counter[int] = field(default_factory=Counter)
    again: dict[int, int] = field(default_factory=dict)
    late: StragglersState = field(default_factory=StragglersState)


class RoundCollector:
    """Sends over a grid and collects; a reply that comes too late is taken and thrown away.

    Backup workers (Chen et al. 2016, "Revisiting distributed synchronous SGD"): with a quorum the
    slowest do not hold a round up. What they sent is not lost for methods with a memory: their
    next message says that it was not applied.
    """

    def __init__(self, grid: OrderedGrid, state: RoundCollectorState | None = None) -> None:
        self._grid = grid
        self._state = RoundCollectorState() if state is None else state
        self._late = Stragglers(grid, self._state.late)
        self._slowest = Slowest()
        self.time_was_up = False  # in the last round: else those that are missing were too many

    def resting(self) -> set[int]:
        """Return the nodes not to be asked in the coming round.

        A node that has not answered is asked again in the next round; after m rounds in a row in
        which it has not, in the m-th after (8 at most): who is always late does not drown in them.
        """
        return {node for node, when in self._state.again.items() if when > self._state.round + 1}

    def __call__(self, messages: list[Message], quorum: int, timeout: float) -> dict[int, Message]:
        """Return the replies by node: all, or those there once `quorum` of them are no errors.

        `timeout`: seconds, virtual ones on a local grid.
        """
        grid = self._grid
        patience = AdaptiveTimeout(grid, timeout, len(messages), self._slowest)
        ids = list(grid.push_messages(messages, timeout))  # none is handed out any later
        waiting = {i: m.metadata.dst_node_id for i, m in zip(ids, messages, strict=True)}
        replies, good = dict[int, Message](), 0
        while waiting and good < quorum:
            arrived = grid.pull_before(ids, patience.deadline)
            if not arrived:
                break
            for message in arrived:
                replies[waiting.pop(message.metadata.reply_to_message_id)] = message
                good += not message.has_error()
            ids = [i for i in ids if i in waiting]
            patience.came(len(replies))
        patience.over(len(waiting))
        self._state.round += 1
        self.time_was_up = bool(waiting) and grid.now >= patience.deadline
        self._remember(waiting, set(replies))
        return replies

    def forget(self, nodes: set[int]) -> None:
        """Forget nodes that are gone."""
        self._late.forget(nodes)
        for node in nodes:
            self._state.missed.pop(node, None)
            self._state.again.pop(node, None)

    def _remember(self, waiting: dict[str, int], answered: set[int]) -> None:
        """Note who owes a reply, and who does no more."""
        for node in answered:
            self._late.answered(node, self._state.round)
            self._state.missed.pop(node, None)
            self._state.again.pop(node, None)
        for message_id, node in waiting.items():
            self._late.add(message_id, node, self._state.round)
            self._state.missed[node] += 1
            self._state.again[node] = self._state.round + min(self._state.missed[node], LONGEST)
