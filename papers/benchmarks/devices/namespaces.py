"""Compares the bytes on slow links of real processes with the payload bytes of `result.json`.

    python -m papers.benchmarks.devices.namespaces                 # as root; JSON on stdout; 15 min
    python -m papers.benchmarks.devices.namespaces --cases esgd,adacomp   # some of the cases
    python -m papers.benchmarks.devices.namespaces --cases '' --idle 300  # traffic without any run
    python -m papers.benchmarks.devices.namespaces --cases '' --outside  # without a known key
    python -m papers.benchmarks.devices.namespaces --plain             # with Flower's own SuperLink

A server (`edgewire.deploy.server`, with TLS and authenticated nodes) and four nodes
(`edgewire.deploy.node`) have one network namespace each. The link from each node to the server has
10 Mbit/s. All cases run one after the other on the same nodes.

The result of a case has the accuracy, the seconds, the payload bytes that the run has counted, the
bytes of all frames on the links, and the ratio of the bytes. `push_seconds` is the median time of
sending a reply. The first case is `app`, one step of eSGD, in which the nodes download the app.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edgewire.machine.errors import UsageError
from papers.benchmarks.devices.cases import chosen, printed
from papers.benchmarks.devices.netns import SERVER, Lines, lines
from papers.benchmarks.timing import ROOT

NODES, PORT, LOCAL = 4, 8000, "127.0.0.1:8000"
LARGE = ["model=resnet18", "local_steps=1", "batch_size=8", "lr=0.01"]
CASES = {
    "esgd_half": ["algorithm=esgd", "rounds=60", "eval_every=60"],
    "esgd": ["algorithm=esgd", "compression.drop=0.875", "rounds=60", "eval_every=60"],
    "adacomp": ["algorithm=adacomp", "network=ideal", "strategy.pushes=240", "eval_every=240"],
    "synthetic_gradients": [
        "algorithm=synthetic_gradients",
        "network.seconds_per_step=0.01",
        "rounds=40",
        "eval_every=40",
    ],
    "fedavg_f2i": ["algorithm=fedavg_f2i", *LARGE, "rounds=2", "eval_every=2"],
    "fedavg_dgc": ["algorithm=fedavg_dgc", *LARGE, "rounds=5", "eval_every=5"],
    "fedavg_topk": ["algorithm=fedavg_topk", *LARGE, "rounds=2", "eval_every=2"],
    "fedavg": ["algorithm=fedavg", *LARGE, "rounds=1"],
}
FIRST = ["algorithm=esgd", "rounds=1"]
WITH_LOG = 4000  # characters of a log that an error shows


class Field:
    """A server and its nodes as processes in one folder; the exit stack ends them.

    `plain`: the server is Flower's SuperLink. `stock`: the nodes are Flower's SuperNodes.
    """

    def __init__(
        self, made: Lines, folder: Path, stack: ExitStack, plain: bool, stock: bool = False
    ) -> None:
        self.lines, self.folder, self._stack = made, folder, stack
        self._plain, self._stock = plain, stock
        scripts = sysconfig.get_path("scripts")
        self._environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "EDGEWIRE_OUTPUT": str(folder / "runs"),
            "SSL_CERT_FILE": str(folder / "keys" / "ca.crt"),
        }

    def begin(self) -> None:
        """Make keys, start the server and the nodes; return when all are online."""
        names = [f"n{i}" for i in range(len(self.lines.nodes))]
        self._keys("server", SERVER)
        self._keys("node", *names)
        self.start(self.lines.server, self._server(), "server")
        self._until(lambda: self._keys("register", *names, check=False).returncode == 0)
        for i, (name, namespace) in enumerate(zip(names, self.lines.nodes, strict=True)):
            self.start(namespace, self._node(name, i, len(names)), name)
        self._until(lambda: self._keys("list").stdout.count(" online ") == len(names))

    def run(self, overrides: Sequence[str], name: str) -> dict[str, Any]:
        """Run a case to its end; return the run's results, and the bytes that the links carried."""
        for log in self.folder.glob("*.pushes"):
            log.unlink()
        folder, before, began = self.folder / name, self.lines.counters(), time.monotonic()
        done = self._within(
            ["run.py", "engine=superlink", f"engine.address={LOCAL}", *overrides,
             f"nodes={len(self.lines.nodes)}", f"hydra.run.dir={folder}",
             f"engine.certificate={self.folder / 'keys' / 'ca.crt'}"],
            self.lines.server,
        )  # fmt: skip
        seconds, after = time.monotonic() - began, self.lines.counters()
        if done.returncode:
            return {"error": (done.stderr.strip() or done.stdout.strip())[-WITH_LOG:]}
        result = json.loads((folder / "result.json").read_text())
        return {
            "accuracy": result["accuracy"],
            "failures": result["failures"],
            "seconds": round(seconds, 1),
            "updates": result["client_updates"],
            **paced(folder / "history.jsonl"),
            **beside(result, before, after),
            **self._pushed(),
        }

    def outside(self) -> dict[str, Any]:
        """Send all kinds of requests without a registered key from a node's namespace during a run.

        Return the number of requests, the requests that were not refused, and the run's result.
        """
        number = self._keys("list").stdout.split()[1]
        command = ["-m", "tests.deploy.outsider", f"{SERVER}:{PORT}",
                 str(self.folder / "keys" / "ca.crt"), number, "1", "0" * 64]  # fmt: skip
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self._within, command, self.lines.nodes[0])
            run = self.run(CASES["esgd"], "outside")
        lines = [json.loads(line) for line in asked.result().stdout.splitlines()]
        let_in = [name for name, _, status, _ in lines if status < 400]
        return {"tries": len(lines), "let_in": let_in, "run": run}

    def idle(self, seconds: float) -> dict[str, float]:
        """Return the bytes per node on its link, per second and per day, while there is no run."""
        before = self.lines.counters()
        time.sleep(seconds)
        after = self.lines.counters()
        share = sum(after[way] - before[way] for way in before) / len(self.lines.nodes)
        a_day = share / seconds * 86400 / 1e6
        return {"bytes_a_second": round(share / seconds, 1), "megabytes_a_day": round(a_day, 2)}

    def start(self, namespace: str, command: Sequence[str], log: str) -> None:
        """Start a process in the background; its output goes to the file `log`.log."""
        with (self.folder / f"{log}.log").open("wb") as output:
            process = subprocess.Popen(
                self.lines.within(namespace, command),
                stdout=output, stderr=output, cwd=self.folder, start_new_session=True,
                env=self._environment | {"EDGEWIRE_TIMED": str(self.folder / f"{log}.pushes")},
            )  # fmt: skip
        self._stack.callback(end, process)

    def _server(self) -> list[str]:
        keys = self.folder / "keys"
        if not self._plain:
            return [sys.executable, "-m", "edgewire.deploy.server", "--keys", str(keys)]
        return [
            "flower-superlink", "--host", "0.0.0.0", "--port", str(PORT), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt"),
            "--ssl-keyfile", str(keys / "server.key"),
        ]  # fmt: skip

    def _node(self, name: str, place: int, count: int) -> list[str]:
        keys = self.folder / "keys"
        if self._stock:
            return [
                "flower-supernode", "--superlink", f"{SERVER}:{PORT}",
                "--root-certificates", str(keys / "ca.crt"),
                "--auth-supernode-private-key", str(keys / "nodes" / f"{name}.key"),
                "--node-config", f"partition-id={place} num-partitions={count}",
            ]  # fmt: skip
        return [
            sys.executable, "-m", "papers.benchmarks.devices.timed_node",
            "--superlink", f"{SERVER}:{PORT}",
            "--state", str(self.folder / name), "--root-certificates", str(keys / "ca.crt"),
            "--auth-supernode-private-key", str(keys / "nodes" / f"{name}.key"),
            "--node-config", f"partition-id={place} num-partitions={count}",
        ]  # fmt: skip

    def _keys(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        made = ["-m", "edgewire.deploy.keys", "--keys", str(self.folder / "keys"), *arguments]
        done = self._within(made, self.lines.server)
        if check and done.returncode:
            raise UsageError(f"edgewire.deploy.keys: {done.stderr.strip()}")
        return done

    def _within(self, arguments: Sequence[str], namespace: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.lines.within(namespace, [sys.executable, *arguments]),
            capture_output=True, text=True, check=False, cwd=ROOT, env=self._environment,
        )  # fmt: skip

    def _until(self, found: Any, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not found():
            if time.monotonic() > end:
                logs = [file.read_text()[-WITH_LOG:] for file in self.folder.glob("*.log")]
                raise UsageError("\n".join(["the server or its nodes did not come up:", *logs]))
            time.sleep(0.5)

    def _pushed(self) -> dict[str, Any]:
        texts = [file.read_text() for file in self.folder.glob("*.pushes")]
        found = [json.loads(line)["seconds"] for text in texts for line in text.splitlines()]
        return {"push_seconds": round(statistics.median(found), 3)} if found else {}


def paced(history: Path) -> dict[str, float]:
    """Return the median seconds between two consecutive rows of a run's history."""
    moments = [json.loads(line)["seconds"] for line in history.read_text().splitlines()]
    taken = [b - a for a, b in itertools.pairwise(moments[2:])]
    return {"round_seconds": round(statistics.median(taken), 4)} if taken else {}


def beside(result: dict[str, Any], before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """Return the bytes of a run's payloads, the bytes on the links, and their ratio, each way.

    `before`, `after`: the links' counters before and after the run.
    """
    found: dict[str, Any] = {}
    for way, name in (("up", "uplink_bytes"), ("down", "downlink_bytes")):
        on_line, payloads = after[way] - before[way], result[name]
        found[way] = {"payloads": payloads, "line": on_line}
        if payloads:
            found[way]["ratio"] = round(on_line / payloads, 3)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all processes that it has started."""
    for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


@contextmanager
def field(
    plain: bool, up: str | None, down: str | None, nodes: int = NODES, *, stock: bool = False
) -> Iterator[Field]:
    """Within this context there are namespaces, a server, and nodes that are online."""
    with ExitStack() as stack:
        made = stack.enter_context(lines(nodes))
        made.shape(up, down)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = Field(made, folder, stack, plain, stock)
        found.begin()
        yield found


def main() -> int:
    """Print the results; a user's mistake gives one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--idle", type=float, default=0.0, help="seconds, before the cases")
    parser.add_argument("--up", default="10mbit", help="from a node to the server (%(default)s)")
    parser.add_argument("--down", help="from the server to a node; by default not limited")
    parser.add_argument("--outside", action="store_true", help="and ask without a registered key")
    parser.add_argument("--plain", action="store_true", help="Flower's own SuperLink")
    args = parser.parse_args()

    def measure() -> dict[str, Any]:
        report: dict[str, Any] = {}
        cases = chosen(CASES, args.cases)
        with field(args.plain, args.up, args.down) as found:
            if args.idle:
                report["idle"] = found.idle(args.idle)
            if args.outside:
                report["outside"] = found.outside()
            for name, overrides in ({"app": FIRST} | cases).items() if cases else ():
                report[name] = found.run(overrides, name)
                print(name, report[name], file=sys.stderr, flush=True)
        return report

    return printed(measure)


if __name__ == "__main__":
    sys.exit(main())
