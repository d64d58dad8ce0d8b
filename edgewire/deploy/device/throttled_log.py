"""Logs the failures of a node's messages; a reason that repeats is logged less and less often."""

from __future__ import annotations

import re
from collections import Counter
from logging import getLogger

SERVER_INFORMED = "the server is told so"  # by an error reply
AGAIN = "messages are answered again; before that there failed"
_MOST = 100  # the most different reasons that are counted
log = getLogger("edgewire")


class ThrottledLog:
    """Counts consecutive messages that a node could not answer.

    It logs each reason at the first, second, fourth, eighth time, and so on. After the next success
    it logs how many messages have failed.
    """

    def __init__(self) -> None:
        self._failed = 0
        self._times = Counter[str]()

    def say(self, what: str, reason: object = "", error: Exception | None = None) -> None:
        """Log the failure of a message.

        `what`, `reason`: the text of the line; `error`: an exception, which is logged with its
        traceback at the first time.
        """
        self._failed += 1
        line = f"{what}; {SERVER_INFORMED}{f': {reason}' if str(reason) else ''}"
        kind = re.sub(r"\d+", "", f"{line} {error!r}")  # ignore numbers, which differ each time
        if len(self._times) >= _MOST and kind not in self._times:
            self._times.clear()
        self._times[kind] += 1
        times = self._times[kind]
        if times == 1:
            log.error("%s", line, exc_info=error)
        elif times & (times - 1) == 0:
            log.error("%s%s (%d times now)", line, "" if error is None else f": {error!r}", times)

    def over(self) -> None:
        """Reset the counts after a success."""
        if self._failed:
            log.info("%s %d", AGAIN, self._failed)
        self._failed = 0
        self._times.clear()
