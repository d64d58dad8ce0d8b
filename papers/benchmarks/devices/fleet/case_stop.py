"""A server and a node that are stopped (SIGSTOP), under systemd: `... devices.fleet stop`, as root.

A real systemd (`systemd --user` in namespaces) runs a server and a node with the settings of the
project's units on their start, their watchdog and their restart. Each of the two is stopped. The
result has the seconds from the SIGSTOP until the new process answers (the server) or is online (the
node), and the first line that Python has logged at the end of the old one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from edgewire.machine.errors import UsageError
from tests.deploy.processes import ROOT, Processes, descendants, eventually

SYSTEMD = Path("/lib/systemd/systemd")
UNITS = ROOT / "edgewire" / "deploy" / "systemd"
KEPT = ("Type", "WatchdogSec", "TimeoutStartSec", "LimitCORE", "Restart", "RestartSec",
        "TimeoutStopSec")  # fmt: skip
GROUPS = [Path("/sys/fs/cgroup") / each for each in ("systemd", "unified", "memory", "pids")]
MOST = 300.0  # seconds, after which a service does not come back
# Targets that systemd asks for itself. No other unit of this machine is loaded.
TARGETS = {"default": "[Unit]\nWants=server.service node.service\n", "basic": "", "shutdown": ""}


class Systemd(Processes):
    """A systemd with the services server and node, and a folder of its own; as root."""

    def __enter__(self) -> Systemd:
        run, units = self.folder / "run", self.folder / "units"
        for each in (run, units):
            each.mkdir()
        for name, text in TARGETS.items():
            (units / f"{name}.target").write_text(text or "[Unit]\nDefaultDependencies=no\n")
        where = f"127.0.0.1:{self.port}"
        self._unit("server", "--host", "127.0.0.1", "--port", f"{self.port}", "--insecure")
        self._unit("node", "--superlink", where, "--insecure")
        self.environment |= {"XDG_RUNTIME_DIR": str(run), "SYSTEMD_UNIT_PATH": str(units)}
        # It has its own /run, and it loads the units of this folder alone.
        script = (
            'for each in "$@"; do echo $$ > "$each/cgroup.procs"; done; mount -t proc proc /proc; '
            f"mount -t tmpfs none /run; mkdir -p /run/systemd/system; {SYSTEMD} --user; true"
        )
        groups = self.stack.enter_context(control_groups())
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        self.systemd = self.start([*spaces, "bash", "-c", script, "bash", *groups], "systemd.log")
        return self

    def _unit(self, name: str, *words: str) -> None:
        """Write a unit that has the settings `KEPT` of the project's unit."""
        lines = (UNITS / f"edgewire-{name}.service").read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0] in KEPT]
        words = (sys.executable, "-m", f"edgewire.deploy.{name}", *words)
        log = f"append:{self.folder / name}.log"
        more = {
            "ExecStart": shlex.join([*words, "--state", str(self.folder / f"{name}.state")]),
            "WorkingDirectory": ROOT,
            "StandardOutput": log,
            "StandardError": log,
            "Environment": "PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0",
        }
        text = "\n".join(["[Service]", *kept, *(f"{key}={value}" for key, value in more.items())])
        (self.folder / "units" / f"{name}.service").write_text(f"{text}\n")

    def process(self, name: str) -> int:
        """Return the id of a service's process, 0 if it has none."""
        for each in descendants(self.systemd.pid):
            with suppress(OSError):
                words = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
                if f"edgewire.deploy.{name}".encode() in words:
                    return each
        return 0

    def is_back(self, name: str, starts: int) -> bool:
        """Return whether a service has done its work after its start with this number."""
        if name == "node":
            log = self.folder / "node.log"
            return log.is_file() and log.read_text().count("INFO online at") >= starts
        with suppress(httpx.HTTPError):
            url = f"http://127.0.0.1:{self.port}/healthz"
            return httpx.get(url, trust_env=False, timeout=1).text == "ok\n"
        return False


@contextmanager
def control_groups() -> Iterator[list[str]]:
    """Make a control group in each hierarchy that systemd uses; remove them at the end."""
    made = [each / f"edgewire-stop-{os.getpid()}" for each in GROUPS if each.is_dir()]
    for group in made:
        group.mkdir()
    try:
        yield [str(each) for each in made]
    finally:
        for group in made:
            for each in sorted(group.glob("**/"), key=lambda path: -len(path.parts)):
                eventually(partial(_is_empty, each), 10)
                each.rmdir()


def _is_empty(group: Path) -> bool:
    return not (group / "cgroup.procs").read_text()


def stopped(systemd: Systemd, name: str) -> dict[str, Any]:
    """Stop a service's process; return what happens then."""
    process, log = systemd.process(name), systemd.folder / f"{name}.log"
    starts, size = log.read_text().count("INFO online at"), log.stat().st_size
    os.kill(process, signal.SIGSTOP)
    began = time.monotonic()
    while systemd.process(name) in (0, process):
        time.sleep(0.5)
    ended = time.monotonic() - began
    while not systemd.is_back(name, starts + 1):
        time.sleep(0.2)
    seconds = time.monotonic() - began
    said = log.read_bytes()[size:].decode().splitlines()
    return {
        "seconds": round(seconds, 1),
        "new_process": round(ended, 1),
        "said": next((line for line in said if "Fatal Python error" in line), ""),
    }


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="stop", description=__doc__)
    parser.add_argument("--services", nargs="+", default=["server", "node"])
    args = parser.parse_args(words)
    if os.geteuid() or not SYSTEMD.exists() or not shutil.which("unshare"):
        raise UsageError(f"this case needs root, {SYSTEMD} and unshare")
    with tempfile.TemporaryDirectory() as name, Systemd(Path(name)) as systemd:
        for each in ("server", "node"):
            eventually(partial(systemd.is_back, each, 1), MOST)
        return {each: stopped(systemd, each) for each in args.services}
