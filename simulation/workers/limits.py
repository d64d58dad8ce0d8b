"""What a worker process may use: one core, so much memory; for emulating small devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError


class Limits(NamedTuple):
    """`memory_mb`: resident megabytes, Python and torch included, but not what is mapped from
    files, which the system can drop; `pin`: to one core.
    """

    memory_mb: float | None = None
    pin: bool = False

    def check(self) -> None:
        """Raise `UsageError` for limits that cannot be, or not on this system."""
        if self.memory_mb is not None and not 0 < self.memory_mb < float("inf"):
            raise UsageError(f"engine.memory_mb must be above 0, not {self.memory_mb:g}")
        if (self.memory_mb is not None or self.pin) and sys.platform != "linux":
            raise UsageError("engine.memory_mb and engine.pin need Linux")
        if self.memory_mb is not None and (used := _status()["RssAnon"] / 1e3) > self.memory_mb:
            raise UsageError(
                f"engine.memory_mb={self.memory_mb:g} is less than Python, torch and data take: "
                f"{used:.0f} MB"
            )

    def apply(self, number: int) -> None:
        """Limit this process, the worker `number`.

        It may allocate so much that what is resident now and all of that make the limit; more is
        refused by the system, and raises in torch and numpy as where memory is at an end.
        """
        if self.pin:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[number % len(cores)]})
        if self.memory_mb is not None:
            import resource  # not on every system

            used = {name: 1024 * size for name, size in _status().items()}
            room = max(int(1e6 * self.memory_mb) - used["RssAnon"], 0)
            resource.setrlimit(resource.RLIMIT_DATA, (used["VmData"] + room,) * 2)


def _status() -> dict[str, int]:
    """Return this process's sizes, kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(size.split()[0]) for name, size in pairs}
