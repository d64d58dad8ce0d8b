"""The server's clock: it goes on evenly when the machine's clock is set.

Flower takes from the machine's clock until when a message, a node or a ServerApp is valid. A step
of that clock would end them. Only signatures, with times of other clocks, are checked with it.

This clock stands still while the server's process is stopped (SIGSTOP, a paused container): then
nobody can reach the server, and nobody's time may run out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from flwr.supercore import date

_SIGNATURES = ("node_auth", "node_auth_server_interceptor", "superexec")  # their modules' last word
_LOOK, STOPPED = 1.0, 5.0  # seconds between two looks; after which the process was stopped
_START, _BEGAN = datetime.now(UTC), time.monotonic()


class SteadyClock:
    """A clock that `seconds` reads. `clock`: returns the time in seconds, of stops as well."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._counted = self._seen = clock()

    def seconds(self) -> float:
        """Return the time in seconds without stops. Call this more often than `STOPPED`."""
        with self._lock:
            before, self._seen = self._seen, self._clock()
            self._counted += min(self._seen - before, STOPPED)
            return self._counted

    def look(self) -> NoReturn:
        """Read the clock for ever."""
        while True:
            time.sleep(_LOOK)
            self.seconds()


_seconds: Callable[[], float] = time.monotonic


def now() -> datetime:
    """Return the time at the start of this process plus the time since then, in UTC."""
    return _START + timedelta(seconds=_seconds() - _BEGAN)


def install() -> None:
    """Let Flower's loaded modules use this clock, except those that check signatures."""
    global _seconds
    clock = SteadyClock()
    _seconds = clock.seconds
    threading.Thread(target=clock.look, daemon=True).start()
    for name, module in list(sys.modules.items()):
        own = name.startswith("flwr.") and name.rpartition(".")[2] not in _SIGNATURES
        if own and module is not date and vars(module).get("now") is date.now:
            module.now = now  # type: ignore[attr-defined]
