"""The table of many nodes: `python -m papers.benchmarks.devices.fleet fleet --nodes 200`.

A real server has light nodes that are online, wait for messages and have sent the largest telemetry
of a node with all sensors and a long error. The result has

* `seconds`, `cpu_seconds`: of the command `python -m edgewire.deploy.fleet`, start to end, the
  fastest of five; `request_seconds`: of its request alone;
* `lines`: of the table; `online`: nodes that it shows as online, with their temperature;
* `telemetry_bytes`: of one telemetry; `telemetry_bytes_a_day`: of a node that sends one every ten
  minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewire.deploy.device import telemetry
from edgewire.deploy.device.telemetry import PERIOD, Telemetry
from edgewire.deploy.fleet import asked
from papers.benchmarks.devices.fleet.light_nodes import LightNode, all_online
from papers.benchmarks.devices.fleet.served import Served

REPEATS = 5
DAY = 86_400


def told(folder: Path) -> bytes:
    """Return the telemetry of a node with sensors that has met an error."""
    for name, text in (
        ("thermal/thermal_zone0/temp", "51250"),
        ("hwmon/hwmon0/in0_lcrit_alarm", "0"),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    telemetry.SENSORS = folder
    made = Telemetry(folder, tells_errors=True)
    made.failed(
        OSError(28, "No space left on device", "/var/lib/edgewire-node/state/arrays/" + "b" * 64)
    )
    return made.due()


async def pulled(nodes: Sequence[LightNode], content: bytes) -> None:
    """Let each node pull once, with this telemetry."""
    await all_online(nodes)
    gate = asyncio.Semaphore(20)

    async def one(node: LightNode) -> None:
        async with gate:
            await node.compact("pull", [os.urandom(4), content])

    await asyncio.gather(*map(one, nodes))
    for node in nodes:
        node.connection.close()


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, Served(Path(name), args.nodes) as served:
        content = told(Path(name) / "sensors")
        asyncio.run(pulled(served.nodes, content))
        address = f"127.0.0.1:{served.port}"
        command = [sys.executable, "-m", "edgewire.deploy.fleet"]
        command += ["--superlink", address, "--keys", str(served.keys)]
        seconds, processor, requests = [], [], []
        for _ in range(REPEATS):
            began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds.append(time.perf_counter() - began)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            processor.append(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime)
            began = time.perf_counter()
            asked(address, served.keys / "ca.crt")
            requests.append(time.perf_counter() - began)
        lines = said.splitlines()
        return {
            "nodes": args.nodes,
            "seconds": round(min(seconds), 2),
            "cpu_seconds": round(min(processor), 2),
            "request_seconds": round(min(requests), 3),
            "lines": len(lines),
            "online": sum(" online " in line and " 51.2 C " in line for line in lines),
            "line": lines[1],
            "telemetry_bytes": len(content),
            "telemetry_bytes_a_day": round(len(content) * DAY / PERIOD),
        }
