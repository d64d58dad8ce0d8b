"""`engine=ray`: the app in Flower's Simulation Runtime, by the path of `flwr run`.

this process                        started for this run, ended with it
------------                        -----------------------------------
run_ray  -- Control API (HTTP) -->  flower-superlink --simulation, on a loopback port of its own,
  |                                   for this user alone (same_user_only.py)
  |                                   `- flower-superexec
  |                                        `- flwr-simulation   the ServerApp, Ray's driver
  `<----- status and log lines ------           `- Ray          gcs, raylet, ClientApp actors
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click
from flwr.app import UserConfig
from flwr.cli.utils import flwr_cli_exc_handler
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.federation_config_pb2 import SimulationConfig

from simulation.errors import EngineError, UsageError
from simulation.job import Job
from simulation.processes import orderly_exit
from simulation.workers.node_host import log

from .control import bundle, cause_of, follow, one_line
from .private_superlink import private_superlink

RESULT = "result.json"
STOP = "stop"  # the file in the run folder that tells a ServerApp of ours to end
_END_SECONDS = 20.0  # for what it has to write then, after the round in hand


def run_on_ray(
    job: Job, *, actors: int = 0, gpus_per_client: float = 0.0, address: str | None = None
) -> None:
    """Run a job to its end; options as `run_ray`, `actors` 0: one a core. Its log: `ray.log`.

    Raises `UsageError` for what Ray would drop without a word, and as `run_ray`.
    """
    refuse(job, actors=actors, gpus_per_client=gpus_per_client, address=address)
    stop = job.folder / STOP
    stop.unlink(missing_ok=True)
    try:
        run_ray(
            job.app_dir,
            run_config=job.run_config,
            num_nodes=job.nodes,
            actors=actors or None,
            gpus_per_client=gpus_per_client,
            address=address,
            log_file=job.folder / "ray.log",
            on_stop=lambda: ask_to_end(job.folder),
        )
    finally:
        stop.unlink(missing_ok=True)


def ask_to_end(folder: Path) -> None:
    """Let a run end after the round in hand, with a result; wait for that, but not for long.

    It is interrupted once more by whoever does not want to wait at all. A run that has not begun
    has nothing to keep.
    """
    if not (folder / "history.jsonl").exists():
        return
    (folder / STOP).touch()
    log.warning("the run ends after the round in hand, in %.0f s at most", _END_SECONDS)
    until = time.monotonic() + _END_SECONDS
    while not (folder / RESULT).exists() and time.monotonic() < until:
        time.sleep(0.05)


def refuse(
    job: Job, *, actors: int = 0, gpus_per_client: float = 0.0, address: str | None = None
) -> None:
    """Raise `UsageError` for what this engine cannot honour, and for options that cannot be."""
    if job.only_virtual:
        raise UsageError(
            f"engine=ray has no virtual clock and cannot honour {job.only_virtual}, or engine=local"
        )
    if job.verbose:
        raise UsageError(
            "engine=ray cannot honour verbose=true, its log goes to ray.log in the run folder: "
            "drop it"
        )
    if job.device.startswith("cuda") and not gpus_per_client:
        raise UsageError(
            f"engine=ray cannot honour device={job.device} without engine.gpus_per_client=, "
            "the share of a GPU that each node gets"
        )
    expect_options(job.nodes, actors or None, gpus_per_client, address)


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
    on_stop: Callable[[], None] | None = None,
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
        on_stop: called when this process is told to stop, before the run's processes are ended;
            those hear no signals.

    The ServerApp and the ClientApps run in this process's working directory, with its environment.

    Raises:
        UsageError: an argument cannot be.
        EngineError: the run could not start, failed or was stopped; says where its log lies.
    """
    expect_options(num_nodes, actors, gpus_per_client, address)
    if address is not None:
        _reach(address)
    simulation = SimulationConfig(
        num_supernodes=num_nodes,
        client_resources_num_cpus=1,
        client_resources_num_gpus=gpus_per_client,
        init_args_num_cpus=actors,
    )
    fab, app = bundle(app_dir, run_config)
    _refuse_namesakes(app, app_dir)
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
                status = follow(client, run_id, log, on_poll)
        except click.ClickException as error:
            reason = f"Flower's SuperLink ended with code {server.poll()}"
            reason = reason if server.poll() is not None else one_line(error.message)
            raise EngineError(f"{reason} (log: {log})") from error
        except (KeyboardInterrupt, SystemExit):
            if on_stop is not None:
                on_stop()
            raise
    if status.sub_status != "completed":
        cause = cause_of(status, log.read_text(encoding="utf-8", errors="replace"))
        raise EngineError(f"{cause} (log: {log})")
    if log_file is None:
        log.unlink()


def expect_options(
    num_nodes: int, actors: int | None, gpus_per_client: float, address: str | None
) -> None:
    """Raise `UsageError` for arguments of `run_ray` that cannot be."""
    if num_nodes < 1:
        raise UsageError(f"engine=ray needs at least one node, not {num_nodes}")
    if actors is not None and actors < 1:
        raise UsageError(f"engine=ray needs at least one actor, not {actors}")
    if address is not None and actors is not None:
        raise UsageError(
            "the number of actors is the cluster's CPU count when a Ray address is given: drop one"
        )
    _check_gpus(gpus_per_client, address)


def _check_gpus(share: float, address: str | None) -> None:
    """Refuse shares that Ray would wait for without a word."""
    if not 0 <= share < float("inf"):
        raise UsageError(f"engine.gpus_per_client must be 0 or more, not {share:g}")
    if not share or address is not None:
        return
    import torch  # only now: it takes seconds, and most runs ask for no GPU

    if share > (there := torch.cuda.device_count()):
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
