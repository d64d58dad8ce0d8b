"""`engine=ray`: the app in Flower's Simulation Runtime, by the path of `flwr run`.

this process                        started for this run, ended with it
------------                        -----------------------------------
run_ray  -- Control API (HTTP) -->  flower-superlink --simulation, on a loopback port of its own,
  |                                   for this user alone (guard.py)
  |                                   `- flower-superexec
  |                                        `- flwr-simulation   the ServerApp, Ray's driver
  `<----- status and log lines ------           `- Ray          gcs, raylet, ClientApp actors
"""

import hashlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click
import httpx
import torch
from flwr.app import UserConfig
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files, flwr_cli_exc_handler
from flwr.common.config import flatten_dict, get_fab_config
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StreamLogsRequest
from flwr.proto.federation_config_pb2 import SimulationConfig
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from .errors import EngineError, UsageError
from .processes import orderly_exit
from .superlink import private_superlink

_POLL_SECONDS = 0.5
_LAST_LINES_SECONDS = 3.0  # how long a finished run's log may take to arrive


def run_ray(
    app_dir: Path,
    *,
    run_config: UserConfig,
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
        on_poll: called about twice a second while the run goes on.

    The ServerApp and the ClientApps run in this process's working directory, with its environment.

    Raises:
        UsageError: an argument cannot be.
        EngineError: the run could not start, failed or was stopped; says where its log lies.
    """
    if num_nodes < 1:
        raise UsageError(f"engine=ray needs at least one node, not {num_nodes}")
    if actors is not None and actors < 1:
        raise UsageError(f"engine=ray needs at least one actor, not {actors}")
    if address is not None and actors is not None:
        raise UsageError(
            "the number of actors is the cluster's CPU count when a Ray address is given: drop one"
        )
    if address is not None:
        _reach(address)
    _check_gpus(gpus_per_client, address)
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
    with orderly_exit(), private_superlink(log, address) as (server, client):
        try:
            with flwr_cli_exc_handler():
                run_id = client.StartRun(request).run_id
                status = _follow(client, run_id, log, on_poll)
        except click.ClickException as error:
            reason = f"Flower's SuperLink ended with code {server.poll()}"
            reason = reason if server.poll() is not None else _one_line(error.message)
            raise EngineError(f"{reason} (log: {log})") from error
    if status.sub_status != "completed":
        cause = cause_of(status, log.read_text(encoding="utf-8", errors="replace"))
        raise EngineError(f"{cause} (log: {log})")
    if log_file is None:
        log.unlink()


def _check_gpus(share: float, address: str | None) -> None:
    """Refuse shares that Ray would wait for without a word."""
    if not 0 <= share < float("inf"):
        raise UsageError(f"engine.gpus_per_client must be 0 or more, not {share:g}")
    there = torch.cuda.device_count()
    if address is None and share > there:
        raise UsageError(f"engine.gpus_per_client={share:g}, but this machine has {there} GPUs")


def _reach(address: str) -> None:
    """Refuse a cluster that is not there; Ray itself would wait for it without a word."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return  # "auto" and the like: Ray knows
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster answers at {address}: {error}") from error


def _bundle(app_dir: Path, run_config: UserConfig) -> Fab:
    try:
        content, _ = build_fab_from_files(_files(app_dir))
        app = get_fab_config(content)["tool"]["flwr"]["app"]
    except (ValueError, OSError) as error:
        raise EngineError(f"{app_dir} is no Flower app: {_one_line(str(error))}") from error
    if unknown := sorted(run_config.keys() - flatten_dict(app.get("config")).keys()):
        raise UsageError(
            f"{', '.join(unknown)}: not in [tool.flwr.app.config] of {app_dir / 'pyproject.toml'}"
        )
    _refuse_namesakes(app, app_dir)
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def _files(app_dir: Path) -> dict[str, bytes | Path]:
    """What `flwr run` collects, but for hidden folders: looking through a `.venv` takes seconds."""
    files: dict[str, bytes | Path] = {}
    for entry in app_dir.resolve().iterdir():
        if entry.is_file():
            files[entry.name] = entry
        elif entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            files |= {f"{entry.name}/{name}": path for name, path in collect_files(entry).items()}
    return files


def _refuse_namesakes(app: dict[str, Any], app_dir: Path) -> None:
    """Ray's actors look for modules in the working directory before they look in the app."""
    here = Path.cwd()
    for reference in app["components"].values():
        package = reference.split(":")[0].split(".")[0]
        found = PathFinder.find_spec(package, [str(here)])
        if found is not None and found.origin is not None and here != app_dir.resolve():
            raise UsageError(
                f"Ray would take `{package}` from {here}, not from the app: run it in {app_dir}"
            )


def _open_log(log_file: Path | None) -> Path:
    if log_file is None:
        handle, name = tempfile.mkstemp(prefix="edgewire-ray-", suffix=".log")
        os.close(handle)
        return Path(name)
    log = log_file.absolute()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    return log


def _follow(
    client: ControlHttpClient, run_id: int, log: Path, on_poll: Callable[[], None] | None
) -> RunStatus:
    """Wait for the run's end, its output going to `log`; returns its last status."""
    copier = threading.Thread(target=_copy_log, args=(client, run_id, log), daemon=True)
    copier.start()
    while True:
        runs = client.ListRuns(ListRunsRequest(run_id=run_id))
        status: RunStatus = runs.run_dict[run_id].status
        if on_poll is not None:
            on_poll()
        if status.status == "finished":
            copier.join(_LAST_LINES_SECONDS)
            return status
        time.sleep(_POLL_SECONDS)


def _copy_log(client: ControlHttpClient, run_id: int, log: Path) -> None:
    with log.open("a", encoding="utf-8") as output, suppress(httpx.HTTPError):
        for part in client.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0)):
            output.write(part.log_output)
            output.flush()


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<line>[A-Z]\w*: (?P<message>.+))")
_PREFIX = "Simulation failed with exception: "
_EMPTY_WORDS = {
    "": "the run failed without saying why",
    "An error was encountered. Ending simulation.": "the simulation failed",
    "No heartbeat received from the task": "the simulation died; was it out of memory?",
}


def cause_of(status: RunStatus, log: str) -> str:
    """Return why the run failed, one line: the ServerApp's exception, or the log's first."""
    if status.sub_status == "stopped":
        return "the run was stopped"
    details = _one_line(status.details.removeprefix(_PREFIX))
    lines = [_COLOUR.sub("", line).strip() for line in log.splitlines()]
    raised = [match for match in map(_RAISED.fullmatch, lines) if match]
    if details not in _EMPTY_WORDS:
        # Flower leaves out the exception's name, without which a KeyError says only 'name'.
        named = (match["line"] for match in raised if match["message"] == details)
        return next(named, details)
    return raised[0]["line"] if raised else _EMPTY_WORDS[details]


def _one_line(text: str) -> str:
    return " ".join(text.split())
