"""Adaptive timeouts for replies, so that a silent node does not stall a call for ever."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from flwr.app import Message

from .timed_grid import TimedGrid

FOREVER = 1e9  # seconds: timeouts from here on count as none
TIMES, LEAST = 10.0, 60.0  # a limit is TIMES what other replies took, at least LEAST seconds
log = getLogger("edgewire")


class SlowestReply:
    """The longest that replies of one kind have taken, in real seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: unknown

    def took(self, seconds: float) -> None:
        """Note how long a reply took."""
        self.seconds = max(self.seconds, seconds)

    def limit(self, grid: TimedGrid, timeout: float) -> float:
        """Return how long to wait for a reply, in seconds: `timeout` if it is below `FOREVER`.

        Otherwise, if time is real, it is `TIMES` the longest reply so far, at least `LEAST`. It is
        unlimited while no reply has been received.
        """
        if timeout < FOREVER or grid.virtual_seconds is not None or not self.seconds:
            return timeout
        return max(TIMES * self.seconds, LEAST)


class AdaptiveTimeout:
    """The deadline for the replies to one call.

    A `timeout` counts from the call. Without one, earlier calls determine the limit
    (`SlowestReply.limit`). In the first call, the first half of the replies determines it.
    """

    def __init__(
        self, grid: TimedGrid, timeout: float, asked: int, slowest: SlowestReply | None = None
    ) -> None:
        self._grid, self._asked, self._began = grid, asked, grid.now
        self._slowest = SlowestReply() if slowest is None else slowest
        limit = self._slowest.limit(grid, timeout)
        self._adapts = timeout >= FOREVER and grid.virtual_seconds is None and limit >= FOREVER
        self.deadline = grid.now + limit

    def came(self, replies: int) -> None:
        """Note that `replies` replies have been received so far."""
        took = self._grid.now - self._began
        self._slowest.took(took)
        if not self._adapts or not 2 * replies >= self._asked > replies:
            return
        wait = max(TIMES * took, LEAST)
        self.deadline = self._grid.now + wait

    def over(self, missing: int) -> None:
        """Log that the call does not wait any longer, if the deadline is over."""
        if missing and self._grid.virtual_seconds is None and self._grid.now >= self.deadline:
            waited = self._grid.now - self._began
            log.warning("%d replies have not come within %.0f s (timeout=)", missing, waited)


def gathered(
    grid: TimedGrid,
    messages: Sequence[Message],
    timeout: float,
    slowest: SlowestReply | None = None,
) -> list[Message]:
    """Send messages; return the replies received before the deadline (`AdaptiveTimeout`)."""
    patience = AdaptiveTimeout(grid, timeout, len(messages), slowest)
    ids, found = list(grid.push_messages(messages)), list[Message]()
    while ids and (arrived := grid.pull_before(ids, patience.deadline)):
        found += arrived
        there = {reply.metadata.reply_to_message_id for reply in arrived}
        ids = [i for i in ids if i not in there]
        patience.came(len(found))
    patience.over(len(ids))
    return found
