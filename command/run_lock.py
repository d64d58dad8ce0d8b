"""Keeps two processes from writing one run's folder, and ends a job whose sweep was killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf import ConfigError

LOCK = Path(".hydra") / "lock"  # in the run's folder; it holds the id of the last process
EVERY = 1.0  # seconds between two looks at the parent


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """In this context, no other process can enter it for the same folder.

    The system releases the lock when the process ends, also after SIGKILL. Raises `ConfigError` if
    another process has the lock. Without `fcntl` (on Windows) there is no lock.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    (folder / LOCK).parent.mkdir(exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{folder}: process {file.read().strip()} is writing this run: wait for it or stop "
                "it first"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def ended_with_parent() -> Iterator[None]:
    """In this context, stop this process with SIGTERM if the process that started it has ended.

    Joblib's workers would go on after their sweep was killed.
    """
    parent, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(EVERY):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)  # a second signal would not let the run write its checkpoint
                os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
