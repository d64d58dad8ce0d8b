"""What a node says of messages that it cannot answer: at once, and of the same ever less often."""

from __future__ import annotations

import re
from collections import Counter
from logging import getLogger

TOLD = "the server is told so"  # with an error in place of a reply
AGAIN = "messages are answered again; before that there failed"
_MOST = 100  # reasons that are told apart
log = getLogger("edgewire")


class ThrottledLog:
    """Counts the messages in a row that a node could not answer.

    Each reason is said the first, second, fourth, eighth time and so on; with the first answer, how
    many failed.
    """

    def __init__(self) -> None:
        self._failed = 0
        self._times = Counter[str]()

    def say(self, what: str, reason: object = "", error: Exception | None = None) -> None:
        """Say what has failed. `error`: shown once with where it was raised."""
        self._failed += 1
        line = f"{what}; {TOLD}{f': {reason}' if str(reason) else ''}"
        kind = re.sub(r"\d+", "", f"{line} {error!r}")  # others each time, as those of a round
        if len(self._times) >= _MOST and kind not in self._times:
            self._times.clear()
        self._times[kind] += 1
        times = self._times[kind]
        if times == 1:
            log.error("%s", line, exc_info=error)
        elif times & (times - 1) == 0:
            log.error("%s%s (%d times now)", line, "" if error is None else f": {error!r}", times)

    def over(self) -> None:
        """Take note that a message was answered."""
        if self._failed:
            log.info("%s %d", AGAIN, self._failed)
        self._failed = 0
        self._times.clear()
