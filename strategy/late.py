"""Messages that were not answered in time."""

from __future__ import annotations

from strategy.nodes import OrderedGrid

LEAST = 4  # so many are left alone


class Late:
    """Keeps these messages until they are answered after all, or will not be any more.

    Their answers are of no use, but fetched, so that nobody keeps them: each time a quarter more
    are late than were left the last time. (A node's next message tells it what was not applied.) A
    node answers in order: what it owes from before its last answer is lost.
    """

    def __init__(self, grid: OrderedGrid) -> None:
        self._grid = grid
        self._messages: dict[str, tuple[int, int]] = {}  # their nodes, their numbers
        self._answered: dict[int, int] = {}  # node -> the number of its last answered message
        self._most = LEAST

    def __len__(self) -> int:
        return len(self._messages)

    def answered(self, node: int, number: int) -> None:
        """Note that a node has answered a message."""
        self._answered[node] = max(number, self._answered.get(node, 0))

    def add(self, message_id: str, node: int, number: int) -> None:
        """Take a message of a node, whose numbers increase."""
        self._messages[message_id] = node, number
        if len(self._messages) > self._most:
            self.clear()
            self._most = max(LEAST, 5 * len(self._messages) // 4)

    def clear(self) -> None:
        """Fetch what has come; forget what will come no more."""
        for reply in self._grid.pull_before(self._messages, self._grid.now):
            self.answered(*self._messages[reply.metadata.reply_to_message_id])
        self._messages = {
            message_id: (node, number)
            for message_id, (node, number) in self._messages.items()
            if number > self._answered.get(node, 0)
        }
