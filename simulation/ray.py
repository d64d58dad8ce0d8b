"""`engine=ray`: the app in Flower's Simulation Runtime, by the path of `flwr run`.

    this process                        started here, all of it ended here
    ------------                        ----------------------------------
    run_ray  -- Control API (HTTP) -->  flower-superlink --simulation, on a loopback port of its own
      |                                   `- flower-superexec
      |                                        `- flwr-simulation   the ServerApp; Ray's driver
      `<----- status and log lines ------           `- Ray's own    gcs, raylet, the ClientApps' actors

The SuperLink keeps its state in memory, and Flower's home is a temporary folder: neither the user's
`~/.flwr` nor a SuperLink running for other work is touched.
"""

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.cli.utils import flwr_cli_exc_handler
from flwr.common.config import flatten_dict, get_fab_config
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StreamLogsRequest
from flwr.proto.federation_config_pb2 import SimulationConfig
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from simulation.errors import EngineError
from simulation.processes import ProcessTree, orderly_exit, undisturbed

_POLL_SECONDS = 0.5
_START_SECONDS = 90.0  # a SuperLink is up in 3 s on a laptop; small boards import slowly
_GRACE_SECONDS = 5.0


def run_ray(
    app_dir: Path,
    *,
    run_config: dict[str, str | int | float | bool],
    num_nodes: int,
    actors: int | None = None,
    gpus_per_client: float = 0.0,
    address: str | None = None,
    log_file: Path | None = None,
    on_poll: Callable[[], None] | None = None,
) -> None:
    """Run the Flower app in `app_dir` (its folder with `pyproject.toml`) to its end.

    Args:
        app_dir: the app; a bundle of it travels, as `fab-include` says.
        run_config: overrides of `[tool.flwr.app.config]`; every key must exist there.
        num_nodes: simulated SuperNodes, with `partition-id` 0 to `num_nodes` - 1.
        actors: ClientApps at a time (default: as many as cores). Not with `address`: an existing
            cluster runs one for each of its CPUs.
        gpus_per_client: the share of a GPU each ClientApp gets.
        address: an existing Ray cluster (what Ray reads from RAY_ADDRESS); it is left running. The
            cluster's machines must see the same Python packages and the same temporary folder.
        log_file: where the run's log goes; without it a temporary file, kept after a failure.
        on_poll: called a few times a second while the run goes on.

    The ServerApp and the ClientApps run in this process's working directory, with its environment.

    Raises:
        EngineError: the run could not start, failed or was stopped; says where its log lies.
    """
    if num_nodes < 1:
        raise EngineError(f"engine=ray needs at least one node, not {num_nodes}")
    if address is not None and actors is not None:
        raise EngineError(
            "the number of actors is the cluster's CPU count when a Ray address is given: drop one"
        )
    simulation = SimulationConfig(
        num_supernodes=num_nodes,
        client_resources_num_cpus=1,
        client_resources_num_gpus=gpus_per_client,
        init_args_num_cpus=actors,
    )
    fab = _bundle(app_dir, run_config)
    request = StartRunRequest(
        fab=fab_to_proto(fab),
        override_config=user_config_to_proto(run_config),
        override_federation_config=simulation,
    )
    log = _open_log(log_file)
    with orderly_exit(), _superlink(address, log) as (server, client):
        try:
            with flwr_cli_exc_handler():
                run_id = client.StartRun(request).run_id
                status = _follow(client, run_id, log, on_poll)
        except click.ClickException as error:
            reason = f"Flower's SuperLink ended with code {server.poll()}"
            reason = reason if server.poll() is not None else _one_line(error.message)
            raise EngineError(f"{reason} (log: {log})") from error
    if status.sub_status != "completed":
        raise EngineError(f"{_cause(status, log)} (log: {log})")
    if log_file is None:
        log.unlink()


def _bundle(app_dir: Path, run_config: dict[str, str | int | float | bool]) -> Fab:
    try:
        content = build_fab_from_disk(app_dir)
        known = flatten_dict(get_fab_config(content)["tool"]["flwr"]["app"].get("config"))
    except ValueError as error:
        raise EngineError(f"{app_dir} is no Flower app: {_one_line(str(error))}") from error
    if unknown := sorted(run_config.keys() - known.keys()):
        raise EngineError(
            f"{', '.join(unknown)}: not in [tool.flwr.app.config] of {app_dir / 'pyproject.toml'}"
        )
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def _open_log(log_file: Path | None) -> Path:
    if log_file is None:
        handle, name = tempfile.mkstemp(prefix="edgewire-ray-", suffix=".log")
        os.close(handle)
        return Path(name)
    log = log_file.absolute()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    return log


@contextmanager
def _superlink(
    address: str | None, log: Path
) -> Iterator[tuple["subprocess.Popen[bytes]", ControlHttpClient]]:
    """A SuperLink in simulation mode and a client of it; on the way out nothing is left of either."""
    tree = ProcessTree()
    home = Path(tempfile.mkdtemp(prefix="edgewire-"))
    server: subprocess.Popen[bytes] | None = None
    try:
        port = _free_port()
        environment = tree.environment | _settings(home, address)
        with (home / "superlink.log").open("wb") as output:
            server = subprocess.Popen(
                [
                    shutil.which("flower-superlink", path=environment["PATH"]) or "flower-superlink",
                    *("--insecure", "--simulation", "--disable-runtime-dependency-installation"),
                    *("--host", "127.0.0.1", "--port", str(port)),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C is ours to handle
            )
        _wait_until_up(server, port, home / "superlink.log", log)
        client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}",
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        with client:
            yield server, client
    finally:
        with undisturbed():
            tree.end(_GRACE_SECONDS)
            if server is not None:
                server.wait()
            shutil.rmtree(home, ignore_errors=True)


def _settings(home: Path, address: str | None) -> dict[str, str]:
    """What the processes find in their environment; the user's own settings stay as they are."""
    settings = {
        # Flower's processes start each other by bare name, Python's environment active or not.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # An empty address counts as none. A temporary folder of its own keeps Ray from joining
        # a cluster that `ray start` left word of in the usual one.
        "RAY_ADDRESS": address or "",
        "RAY_TMPDIR": str(home),
    }
    return settings


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(
    server: "subprocess.Popen[bytes]", port: int, output: Path, log: Path
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0, trust_env=False).is_success:
                return
        time.sleep(0.05)
    log.write_bytes(output.read_bytes())
    ended = f"ended with code {server.returncode}" if server.poll() is not None else "did not answer"
    raise EngineError(f"Flower's SuperLink {ended} at its start (log: {log})")


def _follow(
    client: ControlHttpClient, run_id: int, log: Path, on_poll: Callable[[], None] | None
) -> RunStatus:
    """Wait for the run's end, its output going to `log`; returns its last status."""
    copier = threading.Thread(target=_copy_log, args=(client, run_id, log), daemon=True)
    copier.start()
    while True:
        status = client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
        if on_poll is not None:
            on_poll()
        if status.status == "finished":
            copier.join(_GRACE_SECONDS)
            return status
        time.sleep(_POLL_SECONDS)


def _copy_log(client: ControlHttpClient, run_id: int, log: Path) -> None:
    with log.open("a", encoding="utf-8") as output, suppress(httpx.HTTPError):
        for part in client.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0)):
            output.write(part.log_output)
            output.flush()


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*): ")
_NO_CAUSE = ("An error was encountered. Ending simulation.", "Simulation Runtime crashed.", "")


def _cause(status: RunStatus, log: Path) -> str:
    """The one line that says why the run failed: the ServerApp's exception, or the first in the log."""
    if status.sub_status == "stopped":
        return "the run was stopped"
    details = _one_line(status.details.removeprefix("Simulation failed with exception: "))
    lines = [
        _COLOUR.sub("", line).split(" : ", 1)[-1].strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    raised = [line for line in lines if _RAISED.match(line)]
    if details in _NO_CAUSE:
        return raised[0] if raised else details or "the run failed without saying why"
    # Flower's details lack the exception's name, without which a KeyError says only 'name'.
    return next((line for line in raised if _RAISED.sub("", line) == details), details)


def _one_line(text: str) -> str:
    return " ".join(text.split())
