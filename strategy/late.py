"""Messages that were not answered in time."""

from __future__ import annotations

from dataclasses import dataclass, field

from strategy.nodes import OrderedGrid

LEAST = 4  # so many are left alone


@dataclass
class LateState:
    """`messages`: their nodes, their numbers; `answered`: node -> the number of its last answered
    message; `most`: of messages, before they are looked for.
    """

    messages: dict[str, tuple[int, int]] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    most: int = LEAST


class Late:
    """Keeps these messages until they are answered after all, or will not be any more.

    Their answers are of no use, but fetched, so that nobody keeps them: each time a quarter more
    are late than were left the last time. (A node's next message tells it what was not applied.) A
    node answers in order: what it owes from before its last answer is lost.
    """

    def __init__(self, grid: OrderedGrid, state: LateState | None = None) -> None:
        self._grid = grid
        self._state = LateState() if state is None else state

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

    def clear(self) -> None:
        """Fetch what has come; forget what will come no more."""
        for reply in self._grid.pull_before(self._state.messages, self._grid.now):
            self.answered(*self._state.messages[reply.metadata.reply_to_message_id])
        self._state.messages = {
            message_id: (node, number)
            for message_id, (node, number) in self._state.messages.items()
            if number > self._state.answered.get(node, 0)
        }
