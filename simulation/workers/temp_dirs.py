"""Temporary folders of this process, and the removal of those that killed processes have left.

A killed process leaves its folder behind. A lock on the folder tells whether it is still in use:
the system releases it when the process and its forks have ended, in whatever way. A process id
would not suffice: it may belong to a new process by now, and it differs in a container.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_NAME = re.compile(r"edgewire-\d+-run-\w{8}")  # as `TempDirs` makes them
_TRIES = 5


class TempDirs:
    """A folder in `parent` that `close` removes, or else the next run.

    Raises `OSError` if it cannot be made.
    """

    def __init__(self, parent: str | Path) -> None:
        prefix = f"edgewire-{os.getpid()}-run-"
        for _ in range(_TRIES):
            self._folder = tempfile.TemporaryDirectory(
                prefix=prefix, dir=parent, ignore_cleanup_errors=True
            )
            self.path = Path(self._folder.name)
            self._lock = _locked(self.path, wait=True)
            if self.path.is_dir():  # no other process has removed it before the lock
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
    if sys.platform == "win32":
        return
    with suppress(OSError):
        for entry in os.scandir(parent):
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_abandoned(entry)


def _remove_abandoned(entry: os.DirEntry[str]) -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    lock = _locked(entry.path, wait=False)
    if lock is not None:
        shutil.rmtree(entry.path, ignore_errors=True)
        os.close(lock)


def _locked(folder: str | Path, *, wait: bool) -> int | None:
    """Return a descriptor that holds the folder's lock; None if it cannot be locked."""
    if sys.platform == "win32":
        return None
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
