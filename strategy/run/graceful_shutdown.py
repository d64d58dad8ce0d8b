"""Ctrl-C and SIGTERM while a run has something to put down first: held back to a safe moment.

A ServerApp that hears no signals, because it is a thread of somebody else's process (Flower's
simulation), is told to stop by a file of the name `STOP` in the run folder.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # seconds for which a signal is held back at most
STOP = "stop"  # the file's name
Handler = Callable[[int, FrameType | None], object]


class GracefulShutdown:
    """A context in which the first signal to stop waits for `go`, and for `GRACE` seconds at most.

    A second one does what it does elsewhere, at once. Only what somebody handles is held back, and
    only in a process's main thread, which alone hears signals. `folder`: the run's, in which a file
    `STOP` counts like a signal; "": there is none.
    """

    def __init__(self, folder: str = "") -> None:
        self._file = Path(folder) / STOP if folder else None
        self.asked: int | None = None  # the number of the signal that waits
        self._before: dict[int, Handler] = {}
        self._timer: threading.Timer | None = None

    @property
    def wanted(self) -> bool:
        """Whether somebody wants the run to end."""
        return self.asked is not None or (self._file is not None and self._file.exists())

    def __enter__(self) -> GracefulShutdown:
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)

    def go(self) -> None:
        """Do now what a signal that waits would have done: raise, as a rule.

        Raises `KeyboardInterrupt` for the file, which is gone then.
        """
        number, self.asked = self.asked, None
        if number is not None:
            self._before[number](number, None)
        if self._file is not None and self._file.exists():
            self._file.unlink(missing_ok=True)
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            self._before[number](number, frame)
            return
        self.asked = number
        self._timer = threading.Timer(GRACE, self._insist, (number,))
        self._timer.daemon = True
        self._timer.start()

    def _insist(self, number: int) -> None:
        """Say it again, unless it was done meanwhile."""
        if self.asked is not None:
            os.kill(os.getpid(), number)
