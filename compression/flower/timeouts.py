"""How long replies are waited for: nobody silent stalls a call for ever."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from flwr.app import Message

from .timed_grid import TimedGrid

FOREVER = 1e9  # seconds: the time-out of who does not want one
TIMES, LEAST = 10.0, 60.0  # of how long the others took; seconds
log = getLogger("edgewire")


class Slowest:
    """The longest that replies of one kind have taken, in real seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: nobody knows

    def took(self, seconds: float) -> None:
        """Note how long a reply took."""
        self.seconds = max(self.seconds, seconds)

    def limit(self, grid: TimedGrid, timeout: float) -> float:
        """Return how long to wait for a reply: `timeout`, if there is one.

        Where time is real and there is none (`FOREVER` or more) it is `TIMES` the longest so far,
        and a minute at the least; without end as long as none has come.
        """
        if timeout < FOREVER or grid.virtual_seconds is not None or not self.seconds:
            return timeout
        return max(TIMES * self.seconds, LEAST)


class AdaptiveTimeout:
    """Until when to wait for the replies of one call.

    A `timeout` counts from the call. Without one (`Slowest.limit`) earlier calls tell how long that
    may be; in the first, once half of the replies are there, what these took.
    """

    def __init__(
        self, grid: TimedGrid, timeout: float, asked: int, slowest: Slowest | None = None
    ) -> None:
        self._grid, self._asked, self._began = grid, asked, grid.now
        self._slowest = Slowest() if slowest is None else slowest
        limit = self._slowest.limit(grid, timeout)
        self._adapts = timeout >= FOREVER and grid.virtual_seconds is None and limit >= FOREVER
        self.deadline = grid.now + limit

    def came(self, replies: int) -> None:
        """Note that so many replies are there now."""
        took = self._grid.now - self._began
        self._slowest.took(took)
        if not self._adapts or not 2 * replies >= self._asked > replies:
            return
        wait = max(TIMES * took, LEAST)
        self.deadline = self._grid.now + wait

    def over(self, missing: int) -> None:
        """Say in the log that nobody waits any longer, if that is so."""
        if missing and self._grid.virtual_seconds is None and self._grid.now >= self.deadline:
            waited = self._grid.now - self._began
            log.warning("%d replies have not come within %.0f s (timeout=)", missing, waited)


def gathered(
    grid: TimedGrid, messages: Sequence[Message], timeout: float, slowest: Slowest | None = None
) -> list[Message]:
    """Send messages; return the replies that are there before patience ends (`AdaptiveTimeout`)."""
    patience = AdaptiveTimeout(grid, timeout, len(messages), slowest)
    ids, found = list(grid.push_messages(messages)), list[Message]()
    while ids and (arrived := grid.pull_before(ids, patience.deadline)):
        found += arrived
        there = {reply.metadata.reply_to_message_id for reply in arrived}
        ids = [i for i in ids if i not in there]
        patience.came(len(found))
    patience.over(len(ids))
    return found
