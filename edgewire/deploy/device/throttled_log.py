"""Logs the failures of a node's messages; a reason that repeats is logged once."""

from __future__ import annotations

import errno
import re
from logging import getLogger

LONGEST = 40, 80  # characters of an error's kind, and of its text
SERVER_INFORMED = "the server is told so"  # by an error reply
AGAIN = "messages are answered again; before that there failed"
log = getLogger("edgewire")


class ThrottledLog:
    """Counts consecutive messages that a node could not answer; logs each change of the reason.

    `error`, `text`: the kind of the last error, such as "ValueError", and its text in one line.
    """

    error = text = ""

    def __init__(self) -> None:
        self._failed, self._reason = 0, ""

    def say(self, what: str, reason: object = "", error: BaseException | None = None) -> None:
        """Log the failure of a message, unless the one before had the same reason.

        `what`, `reason`: the text of the line; `error`: an exception, which is logged with its
        traceback.
        """
        self._failed += 1
        self.note(error or reason)
        line = f"{what}; {SERVER_INFORMED}{f': {reason}' if str(reason) else ''}"
        kind = re.sub(r"\d+", "", f"{line} {error!r}")  # ignore numbers, which differ each time
        if kind != self._reason:
            log.error("%s", line, exc_info=error)
        self._reason = kind

    def note(self, error: object) -> None:
        """Set `error` and `text`, if this is an exception."""
        if isinstance(error, BaseException):
            number = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
            self.error = f"{type(error).__name__} {number}".strip()[: LONGEST[0]]
            self.text = "".join(c if c.isprintable() else " " for c in str(error)[: LONGEST[1]])

    def over(self) -> None:
        """Log how many messages have failed, if any, after a success."""
        if self._failed:
            log.info("%s %d", AGAIN, self._failed)
        self._failed, self._reason = 0, ""
