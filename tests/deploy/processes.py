"""Processes on this machine that are started in a folder and end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
PATIENCE = 240.0  # seconds to wait for any expected event


class Processes:
    """Processes and their folder; its `with` block ends the processes.

    `popen`: what starts a process, with the arguments of `subprocess.Popen`. `environment`: the
    variables of all processes. `port`: a free port, for a server.
    """

    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.stack = ExitStack()
        self.environment = {
            **os.environ,
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def start(
        self, words: Sequence[str], log: str, *, cwd: Path = ROOT, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a process in a new group; its output goes to the file `log`."""
        with (self.folder / log).open("ab") as output:
            process = self.popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd,
                env=self.environment | env, start_new_session=True,
            )  # fmt: skip
        self.stack.callback(end, process)
        return process

    def serve(
        self,
        words: Sequence[str],
        program: Sequence[str] = (sys.executable, "-m", "edgewire.deploy.server"),
        cwd: Path = ROOT,
    ) -> subprocess.Popen[bytes]:
        """Start a server on `port`, and wait until it listens."""
        words = [*program, "--port", str(self.port), *words]
        process = self.start(words, "server.log", cwd=cwd)

        def up() -> bool:
            if process.poll() is not None:
                raise RuntimeError(self.said("server.log"))
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return True
            return False

        eventually(up)
        return process

    def said(self, log: str) -> str:
        """Return the content of a log."""
        return (self.folder / log).read_text()


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def eventually(found: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Call `found` until its value is true; return it. Raises `TimeoutError` after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.02)
    raise TimeoutError("it did not come to be")


def descendants(parent: int) -> list[int]:
    """Return the ids of all processes that a process has started, at any depth."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all processes that it has started."""
    below = descendants(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for each in [process.pid, *below]:
            with suppress(ProcessLookupError):
                os.kill(each, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
