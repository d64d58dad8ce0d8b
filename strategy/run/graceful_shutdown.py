"""Delays Ctrl-C and SIGTERM until a run has written its checkpoint.

Flower's simulation runs a ServerApp in a thread, which gets no signals. Such a ServerApp stops if
the run folder has a file with the name `STOP`.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # the most seconds for which a signal is delayed
STOP = "stop"  # the name of the file that requests a stop
Handler = Callable[[int, FrameType | None], object]


class GracefulShutdown:
    """A context that delays the first signal until `go` is called, but at most `GRACE` seconds.

    A second signal is not delayed. Only signals with a Python handler are delayed, and only in the
    main thread of the process, because Python runs handlers there. `folder`: the run folder; a file
    `STOP` in it is treated as a signal ("": no folder).
    """

    def __init__(self, folder: str = "") -> None:
        self._file = Path(folder) / STOP if folder else None
        self.asked: int | None = None  # the number of the delayed signal
        self._before: dict[int, Handler] = {}
        self._timer: threading.Timer | None = None

    @property
    def wanted(self) -> bool:
        """Whether a signal or the file `STOP` has requested that the run ends."""
        return self.asked is not None or (self._file is not None and self._file.exists())

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)

    def go(self) -> None:
        """Call the handler of the delayed signal, if there is one; the handler usually raises.

        If the file `STOP` exists, delete it and raise `KeyboardInterrupt`.
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
        """Send the signal again after `GRACE` seconds, unless `go` has handled it."""
        if self.asked is not None:
            os.kill(os.getpid(), number)
