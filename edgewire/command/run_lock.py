"""Keeps two processes from writing one folder, and ends a job whose sweep was killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from logging import getLogger
from pathlib import Path

from omegaconf import OmegaConf

from edgewire.conf.schema import ConfigError
from edgewire.machine.processes import began

LOCK = Path(".hydra") / "lock"  # in a run's folder; it names the process, its start, its machine
SWEEP_LOCK = Path(".lock")  # in a sweep's folder
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without flock
EVERY = 1.0  # seconds between two looks at the parent
# Containers share a machine's name, but not its ids of processes; a user may not see another's.
HOST = f"{socket.gethostname()}/{Path('/proc/self/ns/pid').resolve().name}/{os.geteuid()}"
warn_once = cache(getLogger("edgewire").warning)


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
    locks, the text in the lock's file takes its place; processes look at it one after another.
    Raises `ConfigError` if another process has the lock.
    """
    path, turn = folder / lock, (folder / lock).with_name("lock.turn")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file, ExitStack() as looking:
        free, hint = True, ""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            free = False
            if error.errno in NO_LOCKS:
                warn_once("the run's file system has no locks: a text file takes their place")
                hint = f"; if no process writes it, remove {path} and {turn}"
                with suppress(FileExistsError):
                    turn.mkdir()
                    looking.callback(turn.rmdir)
                    free = _ended(path.read_text())
            elif not isinstance(error, BlockingIOError):
                raise
        if not free:
            found = path.read_text().split() or ["?"]
            process = f"process {found[0]} on {found[-1]}" if hint else f"process {found[0]}"
            raise ConfigError(
                f"{folder}: {process} is writing this folder: wait for it or stop it first{hint}"
            )
        path.write_text(f"{os.getpid()} {began(os.getpid())} {HOST}")
        looking.close()
        try:
            yield
        finally:
            with suppress(OSError):  # the folder was removed
                path.write_text("")


def _ended(said: str) -> bool:
    """Return whether the text in a lock's file names no process, or one that has ended here."""
    process, start, host = said.split() or ("0", "", HOST)
    return host == HOST and str(began(int(process))) != start


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
