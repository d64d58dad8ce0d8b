"""Limits a worker process to one core or to some memory, to emulate small devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from edgewire.machine.errors import UsageError


class Limits(NamedTuple):
    """The limits of one process.

    `memory_mb`: megabytes of resident memory. This includes Python and torch, but not pages that
    are mapped from files, which the system can drop. `pin`: the process runs on one core.
    """

    memory_mb: float | None = None
    pin: bool = False

    def check(self) -> None:
        """Raise `UsageError` for limits that are invalid or not supported by this system."""
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
        """Limit this process, which is the worker `number`.

        The process may allocate the difference between the limit and its resident memory now. The
        system refuses more. torch and NumPy then raise, as on a machine without free memory.
        """
        if self.pin:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[number % len(cores)]})
        if self.memory_mb is not None:
            import resource  # not at the top: some systems do not have it

            used = {name: 1024 * size for name, size in _status().items()}
            room = max(int(1e6 * self.memory_mb) - used["RssAnon"], 0)
            resource.setrlimit(resource.RLIMIT_DATA, (used["VmData"] + room,) * 2)


def allowed_cores() -> int:
    """Return the number of cores that this process may use; containers may have fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _status() -> dict[str, int]:
    """Return this process's memory sizes in kB, by their names."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(size.split()[0]) for name, size in pairs}
