"""Processes on this machine: Flower's SuperLink and SuperNodes, and nodes of the project."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from tests import fork_server

ROOT = Path(__file__).parents[2]
COUNTING = Path(__file__).parent / "counting"
SCRIPTS = Path(sysconfig.get_path("scripts"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(found, seconds=30.0):
    """Return the first true value of `found()`. Raises `TimeoutError` after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.05)
    raise TimeoutError("it did not come to be")


class Field:
    """Processes that are started in a folder and end with this object."""

    def __init__(self, folder, stack):
        self.folder, self._stack = folder, stack
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
        self.port = 0

    def start(self, words, log, cwd=None):
        """Start a process in a new process group; its output goes to the file `log`."""
        with (self.folder / log).open("ab") as output:
            process = fork_server.Popen(
                words, stdout=output, stderr=output, env=self.environment, cwd=cwd,
                start_new_session=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._stack.callback(end, process)
        return process

    def said(self, log):
        return (self.folder / log).read_text()

    def superlink(self, *words):
        """Start a SuperLink and wait until it listens."""
        self.port = self.port or free_port()
        process = self.start(
            [str(SCRIPTS / "flower-superlink"), "--insecure", "--host", "127.0.0.1",
             "--port", str(self.port), "--disable-runtime-dependency-installation", *words],
            "superlink.log",
        )  # fmt: skip

        def up():
            assert process.poll() is None, self.said("superlink.log")
            with suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{self.port}/health").is_success

        eventually(up)
        self.control = self._stack.enter_context(
            ControlHttpClient.from_server_address(
                f"127.0.0.1:{self.port}",
                insecure=True,
                root_certificates=None,
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )
        )
        return process

    def node(self, name, *words, program=("-m", "deploy.node")):
        """Start a node of the project."""
        return self.start(
            [sys.executable, *program, "--superlink", f"127.0.0.1:{self.port}", "--insecure",
             "--state", str(self.folder / name), *words],
            f"{name}.log",
            cwd=ROOT,
        )  # fmt: skip

    def stock_node(self, name, *words):
        """Start a SuperNode of Flower."""
        return self.start(
            [str(SCRIPTS / "flower-supernode"), "--insecure", "--superlink",
             f"127.0.0.1:{self.port}", "--port", str(free_port()), *words],
            f"{name}.log",
        )  # fmt: skip

    def online(self, count):
        """Wait until `count` nodes are online."""

        def there():
            nodes = self.control.ListNodes(ListNodesRequest()).nodes_info
            return sum(node.status == "online" for node in nodes) >= count

        eventually(there)

    def submit(self, app, **config):
        """Start a run of an app; return the run's id."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        return self.control.StartRun(
            StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(config))
        ).run_id

    def finished(self, run, seconds=60.0):
        """Wait until a run is over; return its status."""

        def over():
            status = self.control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
            return status if status.status == "finished" else None

        return eventually(over, seconds)

    def counted(self, name="out", **config):
        """Run the counting app to its end; return its nodes' replies, and each round's seconds."""
        out = self.folder / f"{name}.json"
        run = self.submit(COUNTING, out=str(out), **config)
        status = self.finished(run)
        assert status.sub_status == "completed", (status, self.said("superlink.log")[-3000:])
        return json.loads(out.read_text())


def end(process):
    """End a process and all processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(3)


@contextmanager
def field(folder):
    """Yield a `Field` in a folder; its processes end with the context."""
    with ExitStack() as stack:
        yield Field(folder, stack)
