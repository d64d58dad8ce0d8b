"""Holds Ctrl-C and SIGTERM back until a run has written its checkpoint.

Flower's simulation runs a ServerApp in a thread, which gets no signals. A file with the name `STOP`
in the run folder tells such a ServerApp to stop.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # the longest time, in seconds, to hold a signal back
STOP = "stop"  # the file's name
Handler = Callable[[int, FrameType | None], object]


class GracefulShutdown:
    """A context in which the first signal to stop waits for `go`, at most `GRACE` seconds.

    A second signal acts at once, as it does outside of the context. Only signals with a Python
    handler are held back, and only in the process's main thread, where Python runs handlers.
    `folder`: the run folder, in which a file `STOP` counts as a signal; "": no folder.
    """

    def __init__(self, folder: str = "") -> None:
        self._file = Path(folder) / STOP if folder else None
        self.asked: int | None = None  # the number of the signal that is held back
        self._before: dict[int, Handler] = {}
        self._timer: threading.Timer | None = None

    @property
    def wanted(self) -> bool:
        """Whether a signal or the file asks the run to end."""
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
        """Call the handler of a signal that is held back, which usually raises; else do nothing.

        Deletes the file if it exists and raises `KeyboardInterrupt` for it.
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
