"""Adaptive timeouts for replies, so that a node that does not reply cannot stall the server."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from flwr.app import Message

from ..validation import FOREVER
from .timed_grid import TimedGrid

TIMES, LEAST = 10.0, 60.0  # the factor on the time of other replies; the least limit in seconds
log = getLogger("edgewire")


class SlowestReply:
    """The time of the slowest reply so far to messages of one type, in real seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: unknown

    def took(self, seconds: float) -> None:
        """Record that a reply took this many seconds."""
        self.seconds = max(self.seconds, seconds)

    def limit(self, grid: TimedGrid, timeout: float) -> float:
        """Return how many seconds to wait for a reply: `timeout`, if it is below `FOREVER`.

        Otherwise, in real time, the limit is the time of the slowest reply so far multiplied by
        `TIMES`, but at least `LEAST` seconds. There is no limit on a virtual clock, or before the
        first reply.
        """
        if timeout < FOREVER or grid.virtual_seconds is not None or not self.seconds:
            return timeout
        return max(TIMES * self.seconds, LEAST)


class AdaptiveTimeout:
    """The deadline for the replies to the messages of one call.

    A `timeout` is measured from the start of the call. Without a timeout, the times of replies to
    earlier calls determine the limit (`SlowestReply.limit`). In the first call, the time of the
    first half of the replies determines the limit.
    """

    def __init__(
        self, grid: TimedGrid, timeout: float, asked: int, slowest: SlowestReply | None = None
    ) -> None:
        self._grid, self._asked, self._began = grid, asked, grid.now
        self._slowest = SlowestReply() if slowest is None else slowest
        limit = self._slowest.limit(grid, timeout)
        self._adapts = timeout >= FOREVER and grid.virtual_seconds is None and limit >= FOREVER
        self.deadline = grid.now + limit

    def received(self, replies: int) -> None:
        """Record that `replies` replies have arrived so far.

        In the first call without a timeout, the deadline is set when half of the replies have come.
        """
        took = self._grid.now - self._began
        self._slowest.took(took)
        if not self._adapts or not 2 * replies >= self._asked > replies:
            return
        self.deadline = self._grid.now + max(TIMES * took, LEAST)

    def warn_of_missing(self, missing: int) -> None:
        """Log a warning if `missing` replies have not arrived and the deadline is over."""
        if missing and self._grid.virtual_seconds is None and self._grid.now >= self.deadline:
            waited = self._grid.now - self._began
            log.warning("%d replies have not come within %.0f s (timeout=)", missing, waited)


def gathered(
    grid: TimedGrid,
    messages: Sequence[Message],
    timeout: float,
    slowest: SlowestReply | None = None,
) -> list[Message]:
    """Send messages and return the replies that arrive before the deadline (`AdaptiveTimeout`)."""
    limit = AdaptiveTimeout(grid, timeout, len(messages), slowest)
    ids, found = list(grid.push_messages(messages)), list[Message]()
    while ids and (arrived := grid.pull_before(ids, limit.deadline)):
        found += arrived
        there = {reply.metadata.reply_to_message_id for reply in arrived}
        ids = [i for i in ids if i not in there]
        limit.received(len(found))
    limit.warn_of_missing(len(ids))
    return found
