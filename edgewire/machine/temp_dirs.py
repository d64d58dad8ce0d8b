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


class TempDirs:
    """A temporary folder in `parent` that `close` removes.

    If the process is killed, the next process that makes a folder there removes it. Raises
    `OSError` if the folder cannot be made.
    """

    def __init__(self, parent: str | Path) -> None:
        sweep(parent)
        new = Path(tempfile.mkdtemp(prefix=f"edgewire-{os.getpid()}-new-", dir=parent))
        self._lock = _locked(new)  # before it has a name that `sweep` looks for
        self.path = new.rename(new.with_name(new.name.replace("-new-", "-run-")))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
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
            lock = _locked(entry.path)
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)


def _locked(folder: str | Path) -> int | None:
    """Return a descriptor that holds the folder's lock; None if it cannot be locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
