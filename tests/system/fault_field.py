"""Real processes for tests of faults: a server, nodes behind proxies, and runs of run.py."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from edgewire.deploy.keys import main as keys
from edgewire.machine.job import PLACE
from tests.deploy.processes import ROOT, Processes, descendants

NAMES = ("a", "b", "c", "d")
KEPT = 23.0  # seconds until TCP's keepalive finds a dead connection
FIRST = 12  # rows of the history until a run counts as begun


class Proxy:
    """A proxy between a node and the server.

    `mode` is "open", "cut" (the proxy accepts no connection and closes open connections), "still"
    (no data passes, no connection is closed), "deaf" (the server's answers are lost), "loss" (a
    tenth of the connections break at each read) or "slow" (64 kB in a quarter of a second).
    """

    def __init__(self, port: int) -> None:
        self.mode, self._target = "open", port
        self._open: set[socket.socket] = set()
        self._stuck: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: str) -> None:
        """Change the mode; after "deaf" close all connections, because they have lost data."""
        before, self.mode = self.mode, mode
        if mode == "cut" or before == "deaf":
            for each in list(self._open):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def move(self) -> None:
        """Let the open connections stall, and end after `KEPT` seconds, as after a new address."""
        stuck = set(self._open)
        self._stuck |= stuck

        def ended() -> None:
            for each in stuck:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._stuck -= stuck

        timer = threading.Timer(KEPT, ended)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Stop the proxy."""
        self._listening.close()
        self.set("cut")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            if self.mode == "cut":
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            with far:
                self._open |= {near, far}
                back = threading.Thread(target=self._copy, args=(far, near, True), daemon=True)
                back.start()
                self._copy(near, far, False)
                back.join()
                self._open -= {near, far}

    def _copy(self, source: socket.socket, target: socket.socket, down: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while self.mode == "still" or source in self._stuck:
                    time.sleep(0.05)
                if self.mode == "loss" and random.random() < 0.1:
                    break
                if self.mode == "slow":
                    time.sleep(0.25)
                if not (down and self.mode == "deaf"):
                    target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Field(Processes):
    """All processes of a trial and their folder; its `with` block ends the processes."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder)
        self.count, self.keys = nodes, folder / "keys"
        self.environment["SSL_CERT_FILE"] = str(self.keys / "ca.crt")
        self.proxies = [Proxy(self.port) for _ in range(nodes)]
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Field:
        try:
            self.call("server", "127.0.0.1")
            self.call("node", *NAMES[: self.count])
            self.begin_server()
            self.call("register", *NAMES[: self.count])
            for index in range(self.count):
                self.give_disk(self.state(index))
                self.begin_node(index)
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for each in self.proxies:
            each.close()

    def give_disk(self, folder: Path) -> None:
        """Make a node's folder; as root, mount a small disk there, so that a fault can fill it."""
        folder.mkdir()
        if os.geteuid() == 0:
            size = ["-o", "size=64m"]
            subprocess.run(["mount", "-t", "tmpfs", *size, "none", str(folder)], check=True)
            self.stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)

    def call(self, *words: str) -> None:
        """Run `edgewire.deploy.keys` with these words. Raises `RuntimeError` if it fails."""
        where = ["--keys", str(self.keys), "--superlink", f"127.0.0.1:{self.port}"]
        with redirect_stdout(sys.stderr):
            code = keys([*where, *words])
        if code:
            raise RuntimeError(f"edgewire.deploy.keys {words[0]} has ended with {code}")

    def begin_server(self) -> None:
        """Start the server, and wait until it listens."""
        where = ["--keys", str(self.keys), "--state", str(self.folder / "superlink")]
        self.server = self.serve(["--host", "127.0.0.1", *where])

    def start_server(self, first: str = "", **env: str) -> None:
        """Start the server; `first`: a folder that comes first in its module path."""
        where = ["--keys", str(self.keys), "--state", str(self.folder / "superlink")]
        words = ["--port", str(self.port), "--host", "127.0.0.1", *where]
        program = [sys.executable, "-m", "edgewire.deploy.server"]
        path = os.pathsep.join(filter(None, [first, str(ROOT)]))
        self.server = self.start([*program, *words], "server.log", PYTHONPATH=path, **env)

    def begin_node(
        self,
        index: int,
        program: Sequence[str] = ("-m", "edgewire.deploy.node"),
        python: str = sys.executable,
        first: str = "",
        **env: str,
    ) -> None:
        """Start a node; `program` is started with the node's command-line options.

        `first`: a folder that comes first in the node's module path.
        """
        name = NAMES[index]
        words = [
            python, *program, "--superlink", f"127.0.0.1:{self.proxies[index].port}",
            "--root-certificates", str(self.keys / "ca.crt"), "--state", str(self.state(index)),
            "--auth-supernode-private-key", str(self.keys / "nodes" / f"{name}.key"),
            "--node-config", f"partition-id={index} num-partitions={self.count}",
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, [first, str(ROOT)]))
        self.nodes[index] = self.start(words, f"{name}.log", PYTHONPATH=path, **env)

    def state(self, index: int) -> Path:
        """Return the folder of a node's state."""
        return self.folder / f"state-{NAMES[index]}"

    def told(self, index: int) -> str:
        """Return all that a node has logged."""
        return self.said(f"{NAMES[index]}.log")

    def serverapp(self) -> int:
        """Return the process id of the ServerApp, or 0 if no ServerApp runs."""
        for each in descendants(self.server.pid):
            with suppress(OSError):
                words = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
                if any(b"serverapp" in word for word in words):
                    return each
        return 0


class TheRun:
    """One run of run.py, which can be resumed with `resume=` any number of times."""

    def __init__(self, field: Field, name: str, words: list[str]) -> None:
        self._field, self.folder = field, field.folder / name
        self.certificate = f"engine.certificate={field.keys / 'ca.crt'}"
        engine = ["engine=superlink", f"engine.address=127.0.0.1:{field.port}", self.certificate]
        self._name = ""
        self.begin([*engine, f"nodes={field.count}", *words, f"hydra.run.dir={self.folder}"])

    def begin(self, words: list[str]) -> None:
        """Start run.py with these overrides."""
        self.process = self._field.start(
            [sys.executable, "run.py", *words], f"{self.folder.name}.log"
        )

    def resume(self, *words: str) -> None:
        """Resume the run with `resume=` and further overrides."""
        self.begin([f"resume={self.folder}", *words])

    @property
    def rounds(self) -> int:
        """Return the number of rows in the history that the server has of this run."""
        with suppress(OSError, ValueError):
            if not self._name:
                self._name = json.loads((self.folder / PLACE).read_text())["output"]
            there = self._field.folder / "superlink" / "runs" / self._name
            return (there / "history.jsonl").read_bytes().count(b"\n")
        return 0

    @property
    def over(self) -> bool:
        """Return whether the process of run.py has ended."""
        return self.process.poll() is not None

    def has_begun(self) -> bool:
        """Return whether the run has written its first checkpoint, or run.py has ended."""
        return self.rounds > FIRST or self.over

    def has_ended(self) -> bool:
        """Return whether the process of run.py has ended."""
        return self.over

    def result(self) -> dict[str, Any]:
        """Return the contents of `result.json`."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found
