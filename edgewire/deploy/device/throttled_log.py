"""Logs the failures of a node's messages; a reason that repeats is logged once."""

from __future__ import annotations

import re
from collections.abc import Callable
from logging import getLogger

SERVER_INFORMED = "the server is told so"  # by an error reply
AGAIN = "messages are answered again; before that there failed"
log = getLogger("edgewire")


class ThrottledLog:
    """Counts consecutive messages that a node could not answer; logs each change of the reason.

    `failed`: gets each error.
    """

    def __init__(self, failed: Callable[[object], object] = lambda error: None) -> None:
        self._note = failed
        self._failed, self._reason = 0, ""

    def say(self, what: str, reason: object = "", error: BaseException | None = None) -> None:
        """Log the failure of a message, unless the one before had the same reason.

        `what`, `reason`: the text of the line; `error`: an exception, which is logged with its
        traceback.
        """
        self._failed += 1
        self._note(reason if error is None else error)
        line = f"{what}; {SERVER_INFORMED}{f': {reason}' if str(reason) else ''}"
        kind = re.sub(r"\d+", "", f"{line} {error!r}")  # ignore numbers, which differ each time
        if kind != self._reason:
            log.error("%s", line, exc_info=error)
        self._reason = kind

    def over(self) -> None:
        """Log how many messages have failed, if any, after a success."""
        if self._failed:
            log.info("%s %d", AGAIN, self._failed)
        self._failed, self._reason = 0, ""
