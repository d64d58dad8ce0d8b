"""Makes temporary folders for this process, and removes the folders of killed processes.

A killed process does not remove its folder. So each process locks its folder while the folder is in
use. The system releases the lock when the process and its forked children have ended, in any way.
The process id in the folder's name is not enough. A new process may have the same id, and a process
in a container sees other ids.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"edgewire-\d+-run-\w{8}")  # the names that `TempDirs` makes
_TRIES = 5


class TempDirs:
    """A temporary folder in `parent` that `close` removes.

    If the process is killed, a later `sweep` of another process removes the folder.
    Raises `OSError` if the folder cannot be made.
    """

    def __init__(self, parent: str | Path) -> None:
        prefix = f"edgewire-{os.getpid()}-run-"
        for _ in range(_TRIES):
            self._folder = tempfile.TemporaryDirectory(
                prefix=prefix, dir=parent, ignore_cleanup_errors=True
            )
            self.path = Path(self._folder.name)
            self._lock = _locked(self.path, wait=True)
            if self.path.is_dir():  # else another process removed it before it was locked
                return
            self.close()
        raise OSError(f"no folder in {parent} stays where it is")

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(parent: str | Path) -> None:
    """Remove this user's folders in `parent` that no living process has locked."""
    with suppress(OSError):
        for entry in os.scandir(parent):
            is_ours = _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            if not is_ours or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            lock = _locked(entry.path, wait=False)
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)


def _locked(folder: str | Path, *, wait: bool) -> int | None:
    """Return a descriptor that holds the folder's lock; None if it cannot be locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
