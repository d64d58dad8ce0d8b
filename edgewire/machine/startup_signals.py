"""Ends a command that is stopped before its run begins, with one line and no traceback."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINE = b"stopped: no run was under way\n"


def _leave(number: int, frame: FrameType | None) -> None:
    """Print one line and end at once: there is nothing to clean up yet."""
    os.write(2, LINE)
    os._exit(128 + number)


_before: dict[signal.Signals, Any] = {}  # the handlers that `_leave` has replaced


@contextmanager
def handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[dict[signal.Signals, Any]]:
    """Within this context signals have these handlers; yield those from before.

    Outside of the main thread nothing changes: only that thread can set handlers, and only it
    receives signals.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def early_stop() -> Iterator[None]:
    """Within this context SIGINT, SIGTERM and SIGHUP end the process with one line of output.

    The exit code is 128 + the signal's number. The process ends at once. It raises no exception,
    because running code could catch it. A signal that already has a handler, or is ignored (nohup),
    is not changed.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    numbers = [number for number in INTERRUPTS if signal.getsignal(number) in usual]
    with handled(dict.fromkeys(numbers, _leave)) as before:
        _before.update(before)
        try:
            yield
        finally:
            _before.clear()


def under_way() -> AbstractContextManager[object]:
    """Return a context, for a run, in which signals have the handlers from before `early_stop`.

    So a signal does not end the process before the run has cleaned up.
    """
    return handled(_before)
