"""Starting other people's process trees, and ending all of them.

Flower's and Ray's processes start sessions of their own and outlive whoever started them, so
neither a process group nor the parent's id finds them again. What every one of them does keep is
its environment: each tree gets a marker there, and the marker is looked for. Ray's agents write
their title over it, so that the children of what was found are looked for as well.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from .errors import Ended

_MARKER = "EDGEWIRE_PROCESS_TREE"
_INTERRUPTS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
_Handler = Callable[[int, FrameType | None], None] | signal.Handlers

# Linux ends the process when its parent ends, even by SIGKILL; the setting survives the exec.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"
)


class ProcessTree:
    """Processes started by `start`, and everything they start in turn."""

    def __init__(self) -> None:
        self._mark = f"{_MARKER}={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._found: dict[int, str] = {}  # Linux: when each process that was ever seen began

    def start(
        self, command: list[str], environment: dict[str, str], output: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start `command` out of reach of the terminal's Ctrl-C: its starter handles that."""
        if sys.platform == "linux":
            command = [sys.executable, "-c", _TIED, *command]
        name, value = self._mark.split("=")
        process = subprocess.Popen(
            command,
            env={**environment, name: value},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def alive(self) -> list[int]:
        """Ids of the tree's living processes, however deep and whoever their parent is now."""
        if sys.platform == "linux":
            return self._look()
        lines = subprocess.run(
            ["ps", "-A", "-E", "-ww", "-o", "pid=,command="],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        return [int(line.split()[0]) for line in lines if self._mark in line]

    def end(self, grace: float) -> None:
        """End every process of the tree: asked to, then after `grace` seconds made to."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        # A process may start another between the look and the signal: look until none is left.
        while self._signal_all(signal.SIGKILL) and time.monotonic() < deadline + 10:
            time.sleep(0.05)
        for process in self._started:
            process.wait()

    def _signal_all(self, number: signal.Signals) -> int:
        pids = self.alive()
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return len(pids)

    def _look(self) -> list[int]:
        """What bears the mark, was found before or is a child of such a process."""
        processes = {int(each.name): _stat(each) for each in Path("/proc").glob("[0-9]*")}
        now = {pid: stat for pid, stat in processes.items() if stat is not None}
        found = {pid for pid, began in self._found.items() if pid in now and now[pid][1] == began}
        found |= {pid for pid in now if self._marks(Path(f"/proc/{pid}/environ"))}
        more = found
        while more := {pid for pid, (parent, _) in now.items() if parent in more} - found:
            found |= more
        self._found = {pid: now[pid][1] for pid in found}
        return sorted(found)

    def _marks(self, environ: Path) -> bool:
        try:
            return self._mark.encode() in environ.read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            return False


def _stat(process: Path) -> tuple[int, str] | None:
    """A process's parent and when it began; nothing of one that has ended."""
    try:
        # the name, in parentheses, may hold anything
        words = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] == "Z" else (int(words[1]), words[19])


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that `finally` blocks run.

    A signal somebody handles already, or has ignored (nohup), stays as it is.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise Ended(128 + number)

    default = [number for number in _INTERRUPTS if signal.getsignal(number) is signal.SIG_DFL]
    with _handled(default, leave):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back interrupts while cleaning up: a second Ctrl-C must not leave half of it undone."""
    with _handled(_INTERRUPTS, signal.SIG_IGN):
        yield


@contextmanager
def _handled(numbers: list[signal.Signals], handler: _Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it receives signals
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
