"""A command that is told to stop before it has begun with anything: one line, no traceback."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LINE = b"stopped: no run was under way\n"


def _leave(number: int, frame: FrameType | None) -> None:
    """Say so and end: there is nothing yet that would have to be tidied up."""
    os.write(2, LINE)
    os._exit(128 + number)


_before: dict[signal.Signals, Any] = {}  # the handlers in whose place `_leave` is


@contextmanager
def early_stop() -> Iterator[None]:
    """End this process within by SIGINT, SIGTERM or SIGHUP, with one line and 128 + the signal.

    At once, whoever's code a signal comes at: an exception might be caught there. A signal that
    somebody handles already, or has ignored (nohup), stays as it is.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (handler := signal.getsignal(number)) in usual:
            _before[number] = handler
            signal.signal(number, _leave)
    try:
        yield
    finally:
        while _before:
            signal.signal(*_before.popitem())


@contextmanager
def under_way() -> Iterator[None]:
    """Within `early_stop`, handle signals as before it: there is something to be tidied up."""
    for number, handler in _before.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in _before:
            signal.signal(number, _leave)
