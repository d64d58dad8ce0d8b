"""Ends a command that is stopped before its run begins, with one line and no traceback."""

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
    """Within this context SIGINT, SIGTERM and SIGHUP end the process with one line of output.

    The exit code is 128 + the signal's number. The process ends at once. It raises no exception,
    because running code could catch it. A signal that already has a handler, or is ignored (nohup),
    is not changed.
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
    """Within this context, which is for a run, signals have the handlers from before `early_stop`.

    So a signal does not end the process before the run has cleaned up.
    """
    for number, handler in _before.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in _before:
            signal.signal(number, _leave)
