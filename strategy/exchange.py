"""One round's messages out, the answers in: until enough are there, or the time is up."""

from __future__ import annotations

from flwr.app import Message

from strategy.nodes import OrderedGrid


class Exchange:
    """Sends over a grid and collects; an answer that comes too late is taken and thrown away.

    Backup workers (Chen et al. 2016, "Revisiting distributed synchronous SGD"): with a quorum the
    slowest do not hold a round up. What they sent is not lost for methods with a memory: their
    next message says that it was not applied.
    """

    def __init__(self, grid: OrderedGrid) -> None:
        self._grid = grid
        self._late: set[str] = set()

    def __call__(self, messages: list[Message], quorum: int, timeout: float) -> dict[int, Message]:
        """Return the answers by node: all, or those there once `quorum` of them are no errors.

        `timeout`: seconds, virtual ones on a local grid.
        """
        grid = self._grid
        deadline = grid.now + timeout
        ids = list(grid.push_messages(messages))
        waiting, answers, good = set(ids), dict[int, Message](), 0
        while waiting and good < quorum:
            asked = [*ids, *self._late] if self._late else ids
            arrived = grid.pull_before(asked, deadline)
            if not arrived:
                break
            for message in arrived:
                asked_for = message.metadata.reply_to_message_id
                if asked_for in waiting:
                    waiting.discard(asked_for)
                    answers[message.metadata.src_node_id] = message
                    good += not message.has_error()
                else:
                    self._late.discard(asked_for)
            ids = [i for i in ids if i in waiting]
        self._late |= waiting
        return answers
