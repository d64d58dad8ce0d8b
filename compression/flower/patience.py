"""How long replies are waited for: nobody silent stalls a call for ever."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from flwr.app import Message

from .grids import TimedGrid

FOREVER = 1e9  # seconds: the time-out of who does not want one
TIMES, LEAST = 10.0, 60.0  # of how long the others took; seconds
log = getLogger("edgewire")


class Patience:
    """Until when to wait for the replies of one call.

    A `timeout` counts from the call. Where time is real and there is none (`FOREVER` or more),
    once half of the replies are there the others have `TIMES` as long as the slowest of these
    took, and a minute at the least.
    """

    def __init__(self, grid: TimedGrid, timeout: float, asked: int) -> None:
        self._grid, self._asked, self._began = grid, asked, grid.now
        self.deadline = grid.now + timeout
        self._adapts = timeout >= FOREVER and grid.virtual_seconds is None
        self._said = False

    def came(self, replies: int) -> None:
        """Note that so many replies are there now."""
        if not self._adapts or not 2 * replies >= self._asked > replies:
            return
        now = self._grid.now
        wait = max(TIMES * (now - self._began), LEAST)
        self.deadline = now + wait
        if not self._said:
            self._said = True
            missing = self._asked - replies
            log.info("without a timeout=, the last %d replies have %.0f s", missing, wait)


def gathered(grid: TimedGrid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send messages; return the replies that are there before patience ends (`Patience`)."""
    patience = Patience(grid, timeout, len(messages))
    ids, found = list(grid.push_messages(messages)), list[Message]()
    while ids and (arrived := grid.pull_before(ids, patience.deadline)):
        found += arrived
        there = {reply.metadata.reply_to_message_id for reply in arrived}
        ids = [i for i in ids if i not in there]
        patience.came(len(found))
    return found
