"""A SuperLink in simulation mode that belongs to one run: its own port, home folder and Ray."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from launch import same_user_only
from simulation.errors import EngineError
from simulation.processes import ProcessTree, undisturbed
from simulation.proxies import expect_usable_proxies, keep_loopback_direct
from simulation.workers.node_host import log
from simulation.workers.temp_dirs import TempDirs, sweep

_START_SECONDS = 90.0  # it takes 3 s on a laptop; small boards import slowly
_GRACE_SECONDS = 3.0


@contextmanager
def private_superlink(
    log_file: Path, ray_address: str | None = None
) -> Iterator[tuple["subprocess.Popen[bytes]", ControlHttpClient]]:
    """Start a SuperLink; yield it and a client of its Control API; at the end remove all traces.

    Its state is in memory, and Flower's home is a temporary folder: the user's `~/.flwr` and other
    SuperLinks are not touched. All processes that it has started end with it, Ray's too, except a
    cluster at `ray_address`. On Linux it serves this user alone, and so does Ray; elsewhere the log
    warns that any user of the machine can reach it.

    Raises:
        EngineError: it did not start; its output is then in `log_file`.
    """
    # Ray keeps sockets in its temporary folder, and their paths must stay under 104 characters.
    short = ray_address is not None or len(tempfile.gettempdir()) < 11
    parent = tempfile.gettempdir() if short else "/tmp"
    keep_loopback_direct()
    expect_usable_proxies()
    sweep(parent)
    scratch = TempDirs(parent)
    home, tree = scratch.path, ProcessTree()
    try:
        port = _free_port()
        settings = _settings(home, ray_address)
        command = [
            *_superlink(settings["PATH"]),
            *("--insecure", "--simulation", "--disable-runtime-dependency-installation"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
        output = home / "superlink.log"
        with output.open("wb") as stream:
            server = tree.start(command, {**os.environ, **settings}, stream)
        if problem := _wait_until_up(server, port):
            log_file.write_bytes(output.read_bytes())
            raise EngineError(f"Flower's SuperLink {problem} (log: {log_file})")
        with ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}",
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        ) as client:
            yield server, client
    finally:
        with undisturbed():
            tree.end(_GRACE_SECONDS)
            scratch.close()


def _superlink(path: str) -> list[str]:
    """Return the command that starts a SuperLink, on Linux for this user alone."""
    if same_user_only.can_tell():
        return [
            sys.executable,
            "-P",
            same_user_only.__file__,
        ]  # -P: without it this folder's modules would come before all others
    log.warning("any user of this machine can list, read and stop this run while it goes on")
    return [shutil.which("flower-superlink", path=path) or "flower-superlink"]


def _settings(home: Path, ray_address: str | None) -> dict[str, str]:
    """Return the environment variables that the SuperLink's processes get besides the user's."""
    scripts, path = sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)
    settings = {
        # They start each other by bare name, even if the Python environment is not activated.
        "PATH": os.pathsep.join([scripts, path]),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": ray_address or "",  # empty counts as none
    }
    if ray_address is None:
        # In its usual folder Ray would find, and join, a cluster that `ray start` has noted there.
        settings["RAY_TMPDIR"] = str(home)
        if "RAY_AUTH_MODE" not in os.environ:  # this Ray then accepts only clients with its token
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return settings


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: "subprocess.Popen[bytes]", port: int) -> str:
    """Wait until the SuperLink answers; return "" then, else what is wrong with it."""
    health = f"http://127.0.0.1:{port}/health"
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            return f"ended with code {server.returncode} at its start"
        with suppress(httpx.HTTPError):
            if httpx.get(health, timeout=1.0, trust_env=False).is_success:
                return ""
        time.sleep(0.05)
    return f"did not answer within {_START_SECONDS:.0f} s"
