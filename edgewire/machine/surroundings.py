"""What surrounds a process: the user's home folder, the output's encoding, and free memory."""

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

MEMINFO, LIMITS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def find_home() -> None:
    """If the user has no home folder, set HOME to /, as Docker does, also for child processes.

    Such a user has no entry in the password database. `Path.home` and `~` would raise an error,
    also at the import of Flower's modules.
    """
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = "/"


def print_any_text() -> None:
    """Let a command print any text: `?` replaces a character that its output cannot encode.

    The command also ends without a traceback if its output is read no further, as by `| head`.
    """
    usual = sys.excepthook

    def quiet(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if kind is BrokenPipeError:
            with suppress(OSError):  # else Python would complain when it flushes the output
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        else:
            usual(kind, error, trace)

    sys.excepthook = quiet
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # an output that was a file, and is now a pipe
            sys.stdout.reconfigure(errors="replace")


def free_memory(meminfo: Path = MEMINFO, limits: Path = LIMITS) -> int | None:
    """Return the bytes of memory that a new process can use; None if Linux does not tell.

    The smaller of two numbers counts: the machine's free memory, and the unused part of the
    cgroup's limit.
    """
    found = []
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = meminfo.read_text().splitlines()
        line = next(each for each in lines if each.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) << 10)
    with suppress(OSError, ValueError):  # ValueError for "max": the cgroup has no limit
        limit = int((limits / "memory.max").read_text())
        found.append(limit - int((limits / "memory.current").read_text()))
    return min(found, default=None)
