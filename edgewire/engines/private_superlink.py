"""A SuperLink in simulation mode for one run, with a separate port, home folder and Ray."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path

import httpx
from flwr.supercore.control import ControlHttpClient

from edgewire.engines import same_user_only
from edgewire.engines.superlink_client import control_client
from edgewire.machine.errors import EngineError
from edgewire.machine.processes import ProcessTree, flower_environment, undisturbed
from edgewire.machine.proxies import expect_usable_proxies, keep_loopback_direct
from edgewire.machine.temp_dirs import TempDirs

log = getLogger("edgewire")
_START_SECONDS = 90.0  # a start takes 3 s on a laptop; small boards import slowly
_GRACE_SECONDS = 3.0


@contextmanager
def private_superlink(
    log_file: Path, ray_address: str | None = None
) -> Iterator[tuple["subprocess.Popen[bytes]", ControlHttpClient]]:
    """Start a SuperLink; yield its process and a client of its Control API; end it afterwards.

    The SuperLink's state is in memory, and Flower's home is a temporary folder. So the user's
    `~/.flwr` and other SuperLinks are not changed. At the end, this function ends all processes
    that the SuperLink has started, also Ray. An existing Ray cluster at `ray_address` continues. On
    Linux the SuperLink and Ray serve only this user. On other systems, a warning says that any user
    of the machine can reach them.

    Raises:
        EngineError: the SuperLink did not start; its output is in `log_file`.
    """
    # Ray makes sockets in its temporary folder; their paths must have less than 104 characters.
    short = ray_address is not None or len(tempfile.gettempdir()) < 11
    parent = tempfile.gettempdir() if short else "/tmp"
    keep_loopback_direct()
    expect_usable_proxies()
    folders = TempDirs(parent)
    home, tree = folders.path, ProcessTree()
    try:
        port = _free_port()
        settings = _settings(home, ray_address)
        if not same_user_only.can_tell():
            log.warning("any user of this machine can list, read and stop this run while it runs")
        command = [
            *(sys.executable, "-P", same_user_only.__file__),  # -P: search no modules beside it
            *("--insecure", "--simulation", "--disable-runtime-dependency-installation"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
        output = home / "superlink.log"
        with output.open("wb") as stream:
            server = tree.start(command, {**os.environ, **settings}, stream)
        if problem := _wait_until_up(server, port):
            log_file.write_bytes(output.read_bytes())
            raise EngineError(f"Flower's SuperLink {problem} (log: {log_file})")
        with control_client(f"127.0.0.1:{port}") as client:
            yield server, client
    finally:
        with undisturbed():
            tree.end(_GRACE_SECONDS)
            folders.close()


def _settings(home: Path, ray_address: str | None) -> dict[str, str]:
    """Return the environment variables that are added for the SuperLink's processes."""
    settings = {
        **flower_environment(str(home / "flwr"), poll=0.1),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": ray_address or "",  # "" means no address
    }
    if ray_address is None:
        # In Ray's usual folder, Ray would find and join a cluster that `ray start` has started.
        settings["RAY_TMPDIR"] = str(home)
        if "RAY_AUTH_MODE" not in os.environ:  # Ray accepts only clients with this token
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return settings


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: "subprocess.Popen[bytes]", port: int) -> str:
    """Wait until the SuperLink answers; return "", or why it does not answer."""
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
