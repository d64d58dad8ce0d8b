"""Ends a command that is stopped before it has begun: with one line and no traceback."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LINE = b"stopped: no run was under way\n"


def _leave(number: int, frame: FrameType | None) -> None:
    """Print one line and end at once: there is nothing to clean up yet."""
    os.write(2, LINE)
    os._exit(128 + number)


_before: dict[signal.Signals, Any] = {}  # the handlers that `_leave` has replaced


@contextmanager
def early_stop() -> Iterator[None]:
    """Within this context SIGINT, SIGTERM and SIGHUP end the process: one line, code 128 + signal.

    The process ends at once, without an exception, which running code could catch. A signal that
    has a handler already, or is ignored (nohup), stays as it is.
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
    """Within `early_stop`, restore the earlier handlers: now there is something to clean up."""
    for number, handler in _before.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in _before:
            signal.signal(number, _leave)
