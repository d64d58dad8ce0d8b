"""Starts other programs, and ends them together with all processes that they have started.

Flower's and Ray's processes start new sessions, and continue after their parents have ended. So a
process group or a parent's id does not find them. But each process inherits the environment.
`ProcessTree` sets a marker variable in it, and searches all processes for the marker. Ray's agents
overwrite their environment with their title. So `ProcessTree` also searches the children of the
processes that it has found.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from edgewire.machine.errors import Ended
from edgewire.machine.startup_signals import INTERRUPTS, handled

_MARKER = "EDGEWIRE_PROCESS_TREE"

# Linux then ends a process when its parent ends, even by SIGKILL. The setting survives the exec.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"
)


class ProcessTree:
    """The processes that `start` has started, and all their descendants."""

    def __init__(self) -> None:
        self._mark = f"{_MARKER}={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._found: dict[int, str] = {}  # Linux: process id -> start time, for all found processes

    def start(
        self, command: list[str], environment: dict[str, str], output: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start `command` in a new session, where Ctrl-C in the terminal does not reach it."""
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
        """Return the ids of all living processes of the tree, also after their parents' end."""
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
        """End every process of the tree: by SIGTERM, and after `grace` seconds by SIGKILL."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        # A process may start another between the search and the signal: repeat until none is left.
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
        """Return the ids of the living processes of the tree; remember them for the next call.

        They are the processes with the marker, those found before, and all their descendants.
        """
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
        except OSError:  # the process has ended, or belongs to another user
            return False


def flower_environment(home: str, poll: float) -> dict[str, str]:
    """Return the variables with which a SuperLink and the programs that it starts are run.

    `home`: Flower's home folder; `poll`: the seconds between two looks for a run to start.
    """
    # Flower starts programs by name only, which must also work without an activated environment.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": path,
        "FLWR_HOME": home,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{poll:g}",
    }


def _stat(process: Path) -> tuple[int, str] | None:
    """Return a process's parent and its start time; None if it has ended."""
    try:
        # the name, in parentheses, may contain spaces and parentheses
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP raise, as Ctrl-C does, so `finally` blocks run.

    A signal that already has a handler, or is ignored (nohup), is not changed.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise Ended(128 + number)

    default = [number for number in INTERRUPTS if signal.getsignal(number) is signal.SIG_DFL]
    with handled(dict.fromkeys(default, leave)):
        yield


def undisturbed() -> AbstractContextManager[object]:
    """Return a context in which interrupts are ignored: a second Ctrl-C must not stop a cleanup."""
    return handled(dict.fromkeys(INTERRUPTS, signal.SIG_IGN))


@contextmanager
def delayed() -> Iterator[None]:
    """Within this context interrupts are delayed: at its end the last one is handled."""
    asked: list[int] = []
    with handled(dict.fromkeys(INTERRUPTS, lambda number, frame: asked.append(number))):
        yield
    if asked:
        signal.raise_signal(asked[-1])
