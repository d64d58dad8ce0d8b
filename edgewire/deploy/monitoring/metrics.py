"""Tells this machine how the server is: GET /metrics for Prometheus, and GET /healthz.

/healthz is "ok", or has status 503 and a line for each fault. `edgewire/deploy/monitoring/` holds
rules for Prometheus and a dashboard for Grafana. The text format is written here, because with the
package prometheus-client the metrics of 1,000 nodes take 0.3 s.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.common.constant import Status
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from edgewire.deploy.certificates import certificate_in
from edgewire.deploy.monitoring.node_states import FleetStates, NodeState
from edgewire.deploy.sd_notify import ALIVE, notify
from edgewire.deploy.server.access import App, Scope, Send
from edgewire.deploy.server.certificate_file import RENEW
from edgewire.deploy.server.node_registry import OFFLINE, ONLINE, state_of
from edgewire.deploy.server.run_files import is_plain
from edgewire.machine.errors import UsageError

TICK, PINGS = 0.25, 10.0  # seconds between two looks at the event loop; between words to systemd
WINDOW = 30.0  # seconds of the event loop's past that count
LONG_LAG, LASTING_LAG = 5.0, 1.0  # seconds of lag that are a fault: once, all the time
UNPOLLED = 10.0  # seconds without a call of Flower's SuperExec, the process that starts runs
LEAST_DISK = 100e6  # bytes
BOUNDS = ("0.005", "0.02", "0.1", "0.5", "2", "10", "60", "+Inf")  # seconds of a request
TAIL = 1 << 16  # bytes at the end of a history that hold its last row
POLL = "/v1/runtime/acquire-task"
FORMAT = "text/plain; version=0.0.4; charset=utf-8"  # of the metrics
MOST_NODES = 2000  # if there are more nodes, single ones have no metrics
# Metrics of a node by the fields of `NodeState`: without the prefix edgewire_node_, and what it is.
NODE = {
    "last_seen": ("last_seen_timestamp_seconds", "when a node last sent a request"),
    "clock_offset": ("clock_offset_seconds", "by how much a node's clock is ahead"),
    "failures": ("failures_total", "error replies of a node"),
    "streak": ("failure_streak", "error replies of a node since its last usable reply"),
    "uplink_bytes": ("uplink_bytes_total", "bytes of a node's requests"),
    "downlink_bytes": ("downlink_bytes_total", "bytes of the responses to a node"),
    "free_disk": ("disk_free_bytes", "free space of a node's disk"),
    "temperature": ("temperature_celsius", "of a node's hottest part"),
    "undervoltage": ("undervoltage", "1 if a node's supply is too weak"),
}
ABOUT = ("edgewire", "flower", "python", "error")  # fields that are texts
Samples = Iterable[tuple[str, float]]  # (what follows the metric's name, value)


class Monitor:
    """Wraps a SuperLink's ASGI app: measures it, answers the two calls, and tells systemd.

    `output`: the folder that holds each run's folder; `certificate`: the server's, or None.
    `states`: what is known of the nodes. `lags`: for the last 30 s (`WINDOW`) the time of each look
    at the event loop, and the seconds by which it came too late.
    """

    def __init__(
        self, app: App, output: Path, certificate: Path | None, states: FleetStates
    ) -> None:
        self._app, self._output, self._certificate, self._states = app, output, certificate, states
        self._polled, self._began = time.monotonic(), time.time()
        self.lags = deque([(self._polled, 0.0)])
        self._requests, self._seconds = Counter[str](), 0.0  # requests up to each of `BOUNDS`
        self._moved: dict[str, tuple[int, float]] = {}  # run -> its traffic in bytes, since when

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer one of the two calls, or forward and measure the request."""
        path, began = scope.get("path", ""), time.monotonic()
        if scope["type"] == "lifespan":
            self._watching = asyncio.create_task(self._watch())
        if path in ("/metrics", "/healthz"):
            answer = self._metrics if path == "/metrics" else self._health
            await (await run_in_threadpool(answer, scope))(scope, receive, send)
            return
        await self._app(scope, receive, send)
        if path == POLL:
            self._polled = time.monotonic()
        elif path and not path.endswith("/pull"):  # a pull waits for a message
            seconds = time.monotonic() - began
            self._seconds += seconds
            self._requests.update(each for each in BOUNDS if seconds <= float(each))

    async def _watch(self) -> None:
        """Measure the event loop's lag, and tell systemd that the loop goes on."""
        told = 0.0
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            self.lags.append((now := time.monotonic(), now - due))
            while self.lags[0][0] < now - WINDOW:
                self.lags.popleft()
            if now - told >= PINGS:
                notify(ALIVE)
                told = now

    def _health(self, scope: Scope) -> PlainTextResponse:
        faults = list(self._faults())
        return PlainTextResponse("\n".join(faults or ["ok"]) + "\n", 503 if faults else 200)

    def _faults(self) -> Iterator[str]:
        """Yield a line for each fault of this server."""
        lags = [lag for _, lag in self.lags.copy()]
        if max(lags) > LONG_LAG or min(lags) > LASTING_LAG:
            yield f"the event loop lags by {max(lags):.1f} s: is this machine too slow?"
        if not self._output.is_dir():
            yield f"{self._output} is gone: restart the server"
        elif (free := shutil.disk_usage(self._output).free) < LEAST_DISK:
            yield f"the disk of {self._output} has {free / 1e6:.0f} MB left: make space"
        if (silent := time.monotonic() - self._polled) > UNPOLLED:
            yield f"no SuperExec has asked for runs for {silent:.0f} s: restart the server"
        if self._certificate is not None and self._end() <= time.time():
            yield f"{self._certificate} has ended, or cannot be read: {RENEW}"

    def _end(self) -> float:
        """Return when the certificate ends, as a time stamp; 0 if it cannot be read."""
        with suppress(UsageError):
            if self._certificate is not None:
                return certificate_in(self._certificate).not_valid_after_utc.timestamp()
        return 0.0

    def _metrics(self, scope: Scope) -> PlainTextResponse:
        lines = []
        for name, text, samples in self._families(state_of(scope)):
            kind = "counter" if name.endswith("_total") else "gauge"
            kind = "histogram" if name == "request_seconds" else kind
            lines += [f"# HELP edgewire_{name} {text}", f"# TYPE edgewire_{name} {kind}"]
            lines += [f"edgewire_{name}{rest} {float(value)}" for rest, value in samples]
        return PlainTextResponse("\n".join(lines) + "\n", headers={"content-type": FORMAT})

    def _families(self, state: Any) -> Iterator[tuple[str, str, Samples]]:
        """Yield each metric's name, its description and its samples."""
        disk, lag = shutil.disk_usage(self._output), max(lag for _, lag in self.lags.copy())
        nodes, runs = self._states.all(state), self._runs(state)
        counts = Counter({ONLINE: 0, OFFLINE: 0})
        counts.update(each.status for each in nodes)
        for each in nodes:  # one that has been silent since before this process began
            if each.status == OFFLINE and each.last_seen is None:
                each.last_seen = self._began
        yield "healthy", "1 if /healthz is ok", [("", not any(self._faults()))]
        yield "loop_lag_seconds", "longest lag of the event loop in 30 s", [("", lag)]
        yield "disk_free_bytes", "free space of the results' disk", [("", disk.free)]
        yield "disk_size_bytes", "size of the results' disk", [("", disk.total)]
        if self._certificate is not None:
            text = "when the server's certificate ends"
            yield "certificate_end_timestamp_seconds", text, [("", self._end())]
        yield "request_seconds", "duration of requests, without pulls", self._histogram()
        states = ((labels(state=each), count) for each, count in counts.items())
        yield "nodes", "nodes by their state", states
        rounds = ((run, last) for run, (last, _) in runs.items())
        yield "run_round", "last round of an unfinished run", rounds
        text = "when a message of an unfinished run last went to a node or came from one"
        moved = ((run, when) for run, (_, when) in runs.items())
        yield "run_last_progress_timestamp_seconds", text, moved
        if len(nodes) <= MOST_NODES:
            yield from self._nodes(nodes)

    def _nodes(self, nodes: list[NodeState]) -> Iterator[tuple[str, str, Samples]]:
        named = {shown(each.name or str(each.node)): each for each in nodes}
        known = {labels(node=name): each for name, each in named.items()}
        for field, (name, text) in NODE.items():
            values = ((node, getattr(each, field)) for node, each in known.items())
            yield f"node_{name}", text, (each for each in values if each[1] is not None)
        online = ((node, each.status == ONLINE) for node, each in known.items())
        yield "node_online", "1 if a node is online", online
        about = ({f: getattr(each, f) for f in ABOUT} | {"node": n} for n, each in named.items())
        text = "versions of a node, and the kind of its last error"
        yield "node_info", text, ((labels(**each), 1) for each in about)

    def _histogram(self) -> Samples:
        for bound in BOUNDS:
            yield f"_bucket{labels(le=bound)}", self._requests[bound]
        yield "_sum", self._seconds
        yield "_count", self._requests[BOUNDS[-1]]

    def _runs(self, state: Any) -> dict[str, tuple[int, float]]:
        """Return unfinished runs, as labels, with their rounds and times of their last messages."""
        found = {}
        for run in state.get_run_info(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING]):
            name = str(run.override_config.get("output") or run.run_id)
            size = run.bytes_sent + run.bytes_recv
            if self._moved.get(name, (-1, 0.0))[0] != size:
                self._moved[name] = size, time.monotonic()
            when = time.time() - time.monotonic() + self._moved[name][1]
            found[labels(run=name)] = self._round(name), when
        return found

    def _round(self, run: str) -> int:
        """Return the last round in the history of a run; 0 if there is none yet."""
        path = self._output / (run if is_plain(run) else "") / "history.jsonl"
        with (
            suppress(OSError, ValueError, KeyError, TypeError, IndexError),
            path.open("rb") as file,
        ):
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            return int(json.loads(file.read().split(b"\n")[-2])["round"])
        return 0


def labels(**given: str) -> str:
    """Return labels in the text format, whatever their values are."""
    escaped = {n: shown(v).replace("\\", r"\\").replace('"', r"\"") for n, v in given.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def shown(text: str) -> str:
    """Return at most 64 characters of a text, with "?" for each that is not printable."""
    cut = text[:64]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)
