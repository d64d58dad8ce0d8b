"""Keeps two processes from writing one folder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path

from omegaconf import OmegaConf

from edgewire.conf.schema import ConfigError

LOCK = Path(".hydra") / "lock"  # in a run's folder; it names the process
SWEEP_LOCK = Path(".lock")  # in a sweep's folder
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without flock


def new_folder(top: str) -> str:
    """Make the folder `top`/DATE/TIME, or TIME-2, TIME-3 and so on if it is there; return it.

    conf/config.yaml calls this function for a command that names no folder.
    """
    name, number = time.strftime("%Y-%m-%d/%H-%M-%S"), 1
    while True:
        folder = Path(top, name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return str(folder)
        except FileExistsError:
            number += 1


OmegaConf.register_new_resolver("new_folder", new_folder, use_cache=True, replace=True)


@contextmanager
def run_lock(folder: Path, lock: Path = LOCK) -> Iterator[None]:
    """In this context, no other process can enter it for the same folder.

    The system releases the lock when the process ends, also after SIGKILL. On a file system without
    locks this logs a warning, and nothing is locked. Raises `ConfigError` if another process has
    the lock.
    """
    path = folder / lock
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{folder}: process {path.read_text() or '?'} is writing this folder: wait for it "
                "or stop it first"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            getLogger("edgewire").warning(
                "the file system has no locks: let no other process write %s", folder
            )
        path.write_text(str(os.getpid()))
        try:
            yield
        finally:
            with suppress(OSError):  # the folder was removed
                path.write_text("")
