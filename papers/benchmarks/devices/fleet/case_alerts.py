"""Each alert fires on its fault: `python -m papers.benchmarks.devices.fleet alerts`, as root.

For each fault a server with ten nodes begins in this process. The nodes pull, and one of them
answers a run's messages. Then the fault is made: nodes stop, clocks and sensors are wrong, the disk
is filled, the event loop is stopped again and again. The metrics are read twice before the fault
and twice during it, a second apart. promtool, of Debian's package prometheus, evaluates the rules
on these metrics for half an hour: a time that has grown from one reading to the next grows on,
everything else stays as it is.

The result has for each fault the alerts that fire, and the alerts that fire too early; "wrong" has
the faults with other alerts than theirs. `scrape` has the seconds of requests for the metrics of
1,000 nodes, from a server process over TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from flwr.app import RecordDict
from prometheus_client.parser import text_string_to_metric_families

from edgewire.deploy import certificates, compact_bundle, signed_header
from edgewire.deploy.certificates import make_ca, make_server
from edgewire.deploy.device.app_runner import refused
from edgewire.deploy.monitoring.metrics import POLL
from edgewire.machine.errors import UsageError
from edgewire.protocol.bundle import parts_of
from edgewire.protocol.choose_grid import bundled
from papers.benchmarks.devices.fleet.light_nodes import all_online
from papers.benchmarks.devices.fleet.served import Served
from tests.deploy import served as tests_served
from tests.deploy.processes import ROOT

THERE: Any = tests_served  # tests have no types
RULES = ROOT / "edgewire" / "deploy" / "monitoring" / "alerts.yml"
MINUTES = 30
# Minutes at which an alert must not fire yet. Of a node that has ended in order, the server knows
# only within two minutes when it was there.
EARLY = {"NodeSilent": 7, "RunStalled": 14, "NodesOffline": 4, "ServerLags": 1, "ServerDown": 1}
PROCESS = b"1234"  # the number of a node's process
USUAL = {"temperature": 45, "undervoltage": False, "free_disk": 8e9}  # what a node tells
FIRING = 'max by (alertname) (ALERTS{alertstate="firing"})'
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Stops:
    """Wraps an ASGI app: the path /stop stops the event loop for 0.7 s."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Stop the loop, or forward a request."""
        if scope.get("path") == "/stop":
            time.sleep(0.7)
        await self._app(scope, receive, send)


class Fleet:
    """A server in this process with ten nodes and a run; its `with` block starts it.

    Faults change `told`, the telemetry of the first node; `ahead`, the seconds by which its clock
    is ahead; `silent`, how many nodes do nothing; and `again`, what goes on: "run", "poll" (the
    SuperExec of Flower asks for runs), "stop" (the event loop is stopped).
    """

    def __init__(self, folder: Path) -> None:
        self.keys, self.output = folder / "keys", folder / "runs"
        self.told, self.ahead, self.silent, self.again = dict(USUAL), 0.0, 0, {"run", "poll"}
        self.stack, self.running = ExitStack(), ExitStack()
        make_ca(self.keys)
        self.certify(certificates.SERVER_DAYS)

    def __enter__(self) -> Fleet:
        self.output.mkdir()
        if os.geteuid() == 0:
            disk = ["mount", "-t", "tmpfs", "-o", "size=120m", "none", str(self.output)]
            subprocess.run(disk, check=True)
            self.stack.callback(subprocess.run, ["umount", "--lazy", str(self.output)], check=True)
        server = THERE.Server(output=self.output, certificate=self.keys / "server.crt")
        server.app.add_middleware(Stops)
        gc.collect()
        gc.freeze()  # as the server does: a full garbage collection stops the event loop
        self.stack.callback(gc.unfreeze)
        self.stack.callback(self.running.close)
        self.running.enter_context(server)
        self.http = self.stack.enter_context(
            httpx.Client(base_url=f"http://{server.address}", trust_env=False)
        )
        self.nodes = [THERE.FakeNode(server.address) for _ in range(10)]
        self.grid = bundled(server.begin_run())
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def certify(self, days: int) -> None:
        """Write a certificate of the server that ends after so many days."""
        for name in ("server.crt", "server.key"):
            (self.keys / name).unlink(missing_ok=True)
        with patch.object(certificates, "SERVER_DAYS", days):
            make_server(self.keys, ["127.0.0.1"])

    def ask(self, node: Any) -> Any:
        """Send a message to a node; return it as the node gets it."""
        self.grid.push_messages([THERE.question(node.node.node_id)])
        return node.message(process=PROCESS)

    def fail(self) -> None:
        """Let a node fail three messages."""
        node = self.nodes[1]
        for _ in range(3):
            bundle = refused(self.ask(node), ValueError())
            body = compact_bundle.compact(parts_of(bundle, len(bundle)))
            node.post("push", node.signed() + body).raise_for_status()

    def fill(self) -> None:
        """Leave 5 % of the server's disk."""
        free = shutil.disk_usage(self.output).free
        with (self.output / "filling").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - 5_000_000)

    def goes_on(self) -> None:
        """Do what happens every second."""
        for number, node in enumerate(self.nodes):
            if number >= self.silent:
                first = number == 0
                telemetry = zlib.compress(json.dumps(self.told).encode(), 9, -15) if first else b""
                with shifted(self.ahead if first else 0.0):
                    node.message(process=PROCESS + telemetry)
        if "run" in self.again:
            self.nodes[-1].reply_to(self.ask(self.nodes[-1]), RecordDict())
        with suppress(httpx.TransportError):
            if "poll" in self.again:
                self.http.post(POLL)
            if "stop" in self.again:
                self.http.get("/stop")

    def read(self) -> tuple[float, Samples]:
        """Return the time, and the metrics as Prometheus has them; none if the server is gone."""
        found: Samples = {}
        here = {"job": "edgewire", "instance": "here"}
        try:
            text = self.http.get("/metrics").raise_for_status().text
        except httpx.TransportError:
            return time.time(), {("up", tuple(here.items())): 0.0}
        found["up", tuple(here.items())] = 1.0
        for family in text_string_to_metric_families(text):
            for each in family.samples:
                found[each.name, tuple((each.labels | here).items())] = each.value
        return time.time(), found

    def firing(self) -> dict[int, set[str]]:
        """Return the alerts that fire after each number of minutes, if all goes on as it does."""
        _, before = self.read()
        time.sleep(1)
        self.goes_on()
        now, after = self.read()
        series = []
        for (name, labels), value in after.items():
            is_time = name.endswith("_timestamp_seconds")
            grown = value - before.get((name, labels), value)
            growth = 60 * (is_time and grown > 0.5)  # microseconds are noise
            shown = ",".join(f"{key}={json.dumps(text)}" for key, text in labels)
            start = value - now if is_time else value
            values = f"{start:.3f}+{growth}x{MINUTES}"
            series.append({"series": f"{name}{{{shown}}}", "values": values})
        return evaluated(series)


@contextmanager
def shifted(ahead: float) -> Iterator[None]:
    """Within this context a node's clock is ahead by some seconds."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=ahead)

    with patch.object(signed_header, "datetime", Clock):
        yield


def evaluated(series: list[dict[str, str]]) -> dict[int, set[str]]:
    """Return the alerts that promtool finds for these series, after each number of minutes.

    Raises `RuntimeError` if promtool refuses the rules or the series.
    """
    times = [*EARLY.values(), MINUTES]
    asks = [{"expr": FIRING, "eval_time": f"{each}m", "exp_samples": []} for each in sorted(times)]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asks}
    given = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump(given, file)  # which is YAML, too
        file.flush()
        words = ["promtool", "test", "rules", file.name]
        done = subprocess.run(words, capture_output=True, text=True)
    found = re.findall(
        r"time: (?:(\d+)h)?(?:(\d+)m)?,\s+exp: nil\s+got: (.*)", done.stderr + done.stdout
    )
    if done.returncode and not found:
        raise RuntimeError(done.stderr + done.stdout)
    fire = {int(minutes): set(re.findall(r'alertname="(\w+)"', text)) for _, minutes, text in found}
    return {each: fire.get(each, set()) for each in times}


def _end(fleet: Fleet) -> None:
    fleet.running.close()
    fleet.silent = len(fleet.nodes)
    fleet.again.clear()


def _leave(fleet: Fleet) -> None:
    for node in fleet.nodes[:3]:
        node.leave()
    fleet.silent = 3


# A name -> what makes the fault; the seconds until the server can know it; the alerts it brings.
FAULTS: dict[str, tuple[Callable[[Fleet], object], float, set[str]]] = {
    "none": (lambda fleet: None, 0, set()),
    "server ended": (_end, 0, {"ServerDown"}),
    "no SuperExec": (lambda fleet: fleet.again.remove("poll"), 11, {"ServerUnhealthy"}),
    "loop stopped for 0.7 s": (lambda fleet: fleet.again.add("stop"), 0, {"ServerLags"}),
    "disk full": (Fleet.fill, 0, {"ServerDiskFull", "ServerUnhealthy"}),
    "certificate of 20 days": (lambda fleet: fleet.certify(20), 0, {"CertificateEnds"}),
    "3 of 10 nodes offline": (_leave, 0, {"NodesOffline", "NodeSilent"}),
    "a node silent": (lambda fleet: setattr(fleet, "silent", 1), 0, {"NodeSilent"}),
    "a run stalled": (lambda fleet: fleet.again.remove("run"), 0, {"RunStalled"}),
    "3 failures": (Fleet.fail, 0, {"NodeFails"}),
    "85 degrees": (lambda fleet: fleet.told.update(temperature=85), 0, {"NodeHot"}),
    "clock 150 s behind": (lambda fleet: setattr(fleet, "ahead", -150), 0, {"NodeClockWrong"}),
    "a node's disk full": (lambda fleet: fleet.told.update(free_disk=1e8), 0, {"NodeDiskFull"}),
    "weak supply": (lambda fleet: fleet.told.update(undervoltage=True), 0, {"NodeSupplyWeak"}),
}


def with_fault(name: str) -> dict[str, Any]:
    """Return the alerts that fire with a fault; `early`: those that fire before their time."""
    make, seconds, expected = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder)) as fleet:
        fleet.goes_on()
        make(fleet)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(1)
            fleet.goes_on()
        fleet.goes_on()
        fire = fleet.firing()
    early = sorted(name for name, minutes in EARLY.items() if name in fire[minutes])
    return {
        "fires": sorted(fire[MINUTES]),
        "early": early,
        "ok": fire[MINUTES] == expected and not early,
    }


async def pulled(served: Served) -> None:
    """Let each node pull once, with telemetry."""
    await all_online(served.nodes)
    telemetry = zlib.compress(json.dumps({**USUAL, "flower": "1.42.0"}).encode(), 9, -15)
    for node in served.nodes:
        await node.compact("pull", [PROCESS + telemetry])


def scraped(nodes: int, count: int = 20) -> dict[str, Any]:
    """Return the seconds and bytes of requests for the metrics of so many nodes."""
    with tempfile.TemporaryDirectory() as name, Served(Path(name), nodes) as served:
        asyncio.run(pulled(served))
        with httpx.Client(verify=served.tls, trust_env=False) as http:
            seconds, used = [], []
            for _ in range(count):
                began, before = time.perf_counter(), served.used()["cpu_seconds"]
                size = len(http.get(f"https://127.0.0.1:{served.port}/metrics").content)
                seconds.append(time.perf_counter() - began)
                used.append(served.used()["cpu_seconds"] - before)
                time.sleep(0.5)
    return {
        "nodes": nodes, "bytes": size, "median_seconds": round(statistics.median(seconds), 3),
        "longest_seconds": round(max(seconds), 3),
        "server_cpu_seconds": round(statistics.mean(used), 3),
    }  # fmt: skip


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="alerts", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="whose metrics are read")
    args = parser.parse_args(words)
    if os.geteuid() or shutil.which("promtool") is None:
        raise UsageError("this case needs root, and promtool of Debian's package prometheus")
    faults = {name: with_fault(name) for name in FAULTS}
    wrong = [name for name, found in faults.items() if not found.pop("ok")]
    return {"faults": faults, "wrong": wrong, "scrape": scraped(args.nodes)}
