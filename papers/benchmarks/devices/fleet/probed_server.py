"""`python -m papers.benchmarks.devices.fleet.probed_server FILE ...`: a server with a probe.

The probe is a task in the server's event loop. It sleeps for `TICK` seconds again and again. Each
second it writes a line to FILE, JSON: `at`, the time on `time.monotonic`; `gap`, the most seconds
by which a sleep was too long; `cpu`, the most seconds of processor time that the loop's thread took
in one sleep. `gap` grows with the load of the machine, `cpu` does not. The other words are the
server's options.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from edgewire.deploy.server import server
from edgewire.deploy.server.access import App, Scope, Send

TICK = 0.005  # seconds


async def probe(file: Path) -> None:
    """Write the loop's delays to a file until the task is cancelled."""
    gap = cpu = 0.0
    before, used, told = time.monotonic(), time.thread_time(), time.monotonic()
    with file.open("a", buffering=1) as output:
        while True:
            await asyncio.sleep(TICK)
            now, taken = time.monotonic(), time.thread_time()
            gap, cpu = max(gap, now - before - TICK), max(cpu, taken - used)
            before, used = now, taken
            if now - told > 1:
                line = {"at": now, "gap": round(gap, 4), "cpu": round(cpu, 4)}
                output.write(json.dumps(line) + "\n")
                gap, cpu, told = 0.0, 0.0, now


class Probe:
    """Wraps an ASGI app: starts the probe with the app."""

    def __init__(self, app: App, file: Path) -> None:
        self._app, self._file = app, file

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a request."""
        if scope["type"] == "lifespan":
            self._task = asyncio.create_task(probe(self._file))
        await self._app(scope, receive, send)


def most(file: Path, since: float, until: float) -> dict[str, float]:
    """Return the largest `gap` and `cpu` in the lines between two times on `time.monotonic`."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = [each for each in lines if since <= each["at"] <= until + 1]
    return {name: max((each[name] for each in found), default=0.0) for name in ("gap", "cpu")}


def main(words: list[str]) -> int:
    """Run the server; return its exit code."""
    file, gated = Path(words[0]).resolve(), server.gated
    server.gated = lambda options: [*gated(options), (Probe, {"file": file})]
    return server.main(words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
