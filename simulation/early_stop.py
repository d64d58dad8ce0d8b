"""A command that is told to stop while it still imports what it needs: one line, no traceback."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LINE = b"stopped: no run was under way\n"


def _leave(number: int, frame: FrameType | None) -> None:
    """Say so and end: there is nothing yet that would have to be tidied up."""
    os.write(2, LINE)
    os._exit(128 + number)


@contextmanager
def early_stop() -> Iterator[None]:
    """End this process within by SIGINT, SIGTERM or SIGHUP, with one line and 128 + the signal.

    A signal that somebody handles already, or has ignored (nohup), stays as it is.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if (handler := signal.getsignal(number)) in usual
    }
    for number in before:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
