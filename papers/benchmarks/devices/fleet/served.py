"""A server process with a probe and registered light nodes, and what it has used."""

from __future__ import annotations

import multiprocessing
import os
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from edgewire.deploy.certificates import make_ca, make_server
from papers.benchmarks.devices.fleet.light_nodes import write_registered
from papers.benchmarks.devices.fleet.probed_server import most
from tests.deploy.processes import Processes

PROGRAM = (sys.executable, "-m", "papers.benchmarks.devices.fleet.probed_server")
PAUSE = 0.05  # seconds between two small requests
TICKS = os.sysconf("SC_CLK_TCK")  # of a process's time, a second


class Served(Processes):
    """A server with TLS and `count` registered nodes; its `with` block starts it."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder)
        self.keys, self.probed = folder / "keys", folder / "probed"
        make_ca(self.keys)
        make_server(self.keys, ["127.0.0.1"])
        self.nodes = write_registered(count, folder / "superlink" / "nodes.json")
        self.tls = ssl.create_default_context(cafile=self.keys / "ca.crt")
        self.environment["SSL_CERT_FILE"] = str(self.keys / "ca.crt")

    def __enter__(self) -> Served:
        where = ["--keys", str(self.keys), "--state", str(self.folder / "superlink")]
        program = (*PROGRAM, str(self.probed))
        self.server = self.serve(["--host", "127.0.0.1", *where], program)
        for node in self.nodes:
            node.connect(self.port, self.tls)
        return self

    def run(self, *words: str) -> Any:
        """Start run.py with these overrides for all nodes; return its process."""
        return self.start(
            [sys.executable, "run.py", "engine=superlink", f"nodes={len(self.nodes)}",
             f"engine.address=127.0.0.1:{self.port}", f"hydra.run.dir={self.folder / 'run'}",
             f"engine.certificate={self.keys / 'ca.crt'}", *words],
            "run.log",
        )  # fmt: skip

    def used(self) -> dict[str, float]:
        """Return the server's processor time in seconds, and its peak memory in MB."""
        words = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        lines = Path(f"/proc/{self.server.pid}/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM"))
        seconds = (int(words[11]) + int(words[12])) / TICKS
        return {"cpu_seconds": seconds, "peak_megabytes": int(peak.split()[1]) / 1000}

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """Measure the server within this context; the dictionary is filled at its end.

        `longest_get`: the seconds of the slowest of the small requests that another process sends
        all the time. `loop_gap`, `loop_cpu`: see `probed_server`.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        url = f"https://127.0.0.1:{self.port}/v1/fleet/edgewire"
        asker = context.Process(target=_ask, args=(url, str(self.keys / "ca.crt"), theirs))
        asker.start()
        ours.recv()
        report: dict[str, Any] = {}
        before, began = self.used(), time.monotonic()
        try:
            yield report
            ended, after = time.monotonic(), self.used()
            time.sleep(1.5)
            gaps = most(self.probed, began, ended)
            ours.send(None)
            report["longest_get"], report["gets"] = ours.recv()
            report |= {"loop_gap": gaps["gap"], "loop_cpu": gaps["cpu"]}
            report["server_cpu_seconds"] = round(after["cpu_seconds"] - before["cpu_seconds"], 2)
            report["server_peak_megabytes"] = round(after["peak_megabytes"])
        finally:
            asker.terminate()
            asker.join()


def _ask(url: str, root: str, pipe: Connection) -> None:
    """Send small requests until the pipe has a word; send the longest time and the number back."""
    tls = ssl.create_default_context(cafile=root)
    with httpx.Client(verify=tls, trust_env=False, timeout=300) as client:
        client.get(url)
        pipe.send(None)
        longest, count = 0.0, 0
        while not pipe.poll():
            began = time.perf_counter()
            client.get(url).raise_for_status()
            longest, count = max(longest, time.perf_counter() - began), count + 1
            time.sleep(PAUSE)
        pipe.send((round(longest, 3), count))
