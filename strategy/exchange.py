"""One round's messages out, the answers in: until enough are there, or the time is up."""

from __future__ import annotations

from collections import Counter

from flwr.app import Message
from flwr.app.constants import DEFAULT_TTL

from strategy.nodes import OrderedGrid


class Exchange:
    """Sends over a grid and collects; an answer that comes too late is taken and thrown away.

    Backup workers (Chen et al. 2016, "Revisiting distributed synchronous SGD"): with a quorum the
    slowest do not hold a round up. What they sent is not lost for methods with a memory: their
    next message says that it was not applied.
    """

    def __init__(self, grid: OrderedGrid) -> None:
        self._grid = grid
        self._late: dict[str, tuple[int, float]] = {}  # unanswered: its node, not asked until then
        self._missed = Counter[int]()  # node -> deadlines in a row

    def busy(self) -> set[int]:
        """Return the nodes not to be asked now: those with a message that they have time for.

        One that has missed deadlines, in a row, gets the longer a pause the more it has missed.
        """
        now = self._grid.now
        return {node for node, until in self._late.values() if until > now}

    def __call__(self, messages: list[Message], quorum: int, timeout: float) -> dict[int, Message]:
        """Return the answers by node: all, or those there once `quorum` of them are no errors.

        `timeout`: seconds, virtual ones on a local grid.
        """
        grid = self._grid
        deadline = grid.now + timeout
        if grid.virtual_seconds is None and timeout < DEFAULT_TTL:
            for message in messages:  # Flower does not hand out what nobody waits for any more
                message.metadata.ttl = timeout
        ids = list(grid.push_messages(messages))
        waiting = {i: m.metadata.dst_node_id for i, m in zip(ids, messages, strict=True)}
        answers, good = dict[int, Message](), 0
        while waiting and good < quorum:
            asked = [*ids, *self._late] if self._late else ids
            arrived = grid.pull_before(asked, deadline)
            if not arrived:
                break
            for message in arrived:
                asked_for = message.metadata.reply_to_message_id
                if asked_for in waiting:
                    answers[waiting.pop(asked_for)] = message
                    good += not message.has_error()
                else:
                    self._late.pop(asked_for, None)
            ids = [i for i in ids if i in waiting]
        self._remember(waiting, set(answers), deadline, timeout)
        return answers

    def _remember(
        self, waiting: dict[str, int], answered: set[int], deadline: float, timeout: float
    ) -> None:
        """Note who owes an answer, and who does no more: a node answers in order."""
        over = self._grid.now >= deadline
        self._late = {i: late for i, late in self._late.items() if late[0] not in answered}
        for node in answered:
            self._missed.pop(node, None)
        for message_id, node in waiting.items():
            self._missed[node] += over
            pause = max(self._missed[node] - 1, 0) * timeout
            self._late[message_id] = node, deadline + pause
