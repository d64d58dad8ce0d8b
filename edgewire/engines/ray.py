"""`engine=ray`: runs the app in Flower's Simulation Runtime, as `flwr run` does.

this process                           processes that are started and ended with this run
------------                           --------------------------------------------------
run_on_ray  -- Control API (HTTP) -->  flower-superlink --simulation, on a free loopback port,
  |                                      only for this user (same_user_only.py)
  |                                      `- flower-superexec
  |                                           `- flwr-simulation   the ServerApp, Ray's driver
  `<----- status and log lines ---------           `- Ray          gcs, raylet, ClientApp actors
"""

import socket
import time
from logging import getLogger
from pathlib import Path

import click
from flwr.cli.utils import flwr_cli_exc_handler
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.federation_config_pb2 import SimulationConfig

from edgewire.engines.control import bundle, cause_of, follow, refuse_local_only
from edgewire.engines.private_superlink import private_superlink
from edgewire.machine.errors import EngineError, UsageError, one_line
from edgewire.machine.job import Job
from edgewire.machine.processes import orderly_exit
from edgewire.machine.proxies import expect_address

log = getLogger("edgewire")
RESULT = "result.json"
STOP = "stop"  # if this file is in the run folder, this project's ServerApp ends
_END_SECONDS = 20.0  # seconds in which the ServerApp ends its round and writes files


def run_on_ray(
    job: Job, *, actors: int = 0, gpus_per_client: float = 0.0, address: str | None = None
) -> None:
    """Run a job to its end; the log is `ray.log` in the job's folder.

    `actors`: parallel ClientApps; 0: one per core. `gpus_per_client`: the share of a GPU that each
    ClientApp gets. `address`: an existing Ray cluster, in the form of RAY_ADDRESS, which runs one
    ClientApp per CPU and continues after the run. Its machines must have the same Python packages
    and the same temporary folder. The ServerApp and the ClientApps run in this process's working
    directory, with its environment.

    Raises:
        UsageError: an argument is invalid, or a setting that Ray would ignore silently.
        EngineError: the run could not start, failed or was stopped. The message names the log's
            file.
    """
    refuse(job, actors=actors, gpus_per_client=gpus_per_client, address=address)
    if address is not None:
        _reach(address)
    simulation = SimulationConfig(
        num_supernodes=job.nodes,
        client_resources_num_cpus=1,
        client_resources_num_gpus=gpus_per_client,
        init_args_num_cpus=actors or None,
    )
    fab = bundle(job.app_dir, job.run_config, job.sources)
    _refuse_another_checkout(job.app_dir)
    request = StartRunRequest(
        fab=fab_to_proto(fab),
        override_config=user_config_to_proto(job.run_config),
        override_federation_config=simulation,
    )
    log, stop = job.folder / "ray.log", job.folder / STOP
    log.write_bytes(b"")
    stop.unlink(missing_ok=True)
    with orderly_exit(), private_superlink(log, address) as (server, client):
        try:
            with flwr_cli_exc_handler():
                status = follow(client, client.StartRun(request).run_id, log)
        except click.ClickException as error:
            reason = f"Flower's SuperLink ended with code {server.poll()}"
            reason = reason if server.poll() is not None else one_line(error.message)
            raise EngineError(f"{reason} (log: {log})") from error
        except (KeyboardInterrupt, SystemExit):
            ask_to_end(job.folder)
            raise
        finally:
            stop.unlink(missing_ok=True)
    if status.sub_status != "completed":
        cause = cause_of(status, log.read_text(encoding="utf-8", errors="replace"))
        raise EngineError(f"{cause} (log: {log})")


def ask_to_end(folder: Path) -> None:
    """Ask a run to end with a result after its current round; wait at most 20 s for the result.

    A second interrupt ends the wait. If the run has not begun, there is no wait, because the run
    has no result to write.
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
    """Raise `UsageError` for a job that this engine cannot run, and for invalid options."""
    refuse_local_only(job, "ray")
    if job.device.startswith("cuda") and not gpus_per_client:
        raise UsageError(
            f"engine=ray cannot honour device={job.device} without engine.gpus_per_client=, "
            "the share of a GPU that each node gets"
        )
    if actors < 0:
        raise UsageError(f"engine=ray needs at least one actor, not {actors}")
    if address is not None and actors:
        raise UsageError(
            "the number of actors is the cluster's CPU count when a Ray address is given: drop one"
        )
    if not 0 <= gpus_per_client < float("inf"):
        raise UsageError(f"engine.gpus_per_client must be 0 or more, not {gpus_per_client:g}")
    if gpus_per_client and address is None:  # Ray would wait for missing GPUs without a message
        import torch  # imported here: it takes seconds, and most runs need no GPU

        if gpus_per_client > (there := torch.cuda.device_count()):
            raise UsageError(
                f"engine.gpus_per_client={gpus_per_client:g}, but this machine has {there} GPUs"
            )


def _reach(address: str) -> None:
    """Raise `UsageError` if the Ray cluster at `address` cannot be reached.

    Ray would wait for the cluster without a message.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return  # "auto" and other values that Ray resolves
    expect_address(address, "engine.address=")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster answers at {address}: {error}") from error


def _refuse_another_checkout(app_dir: Path) -> None:
    """Raise `UsageError` if the working directory has another `edgewire` than the app's folder.

    Ray's actors search the working directory before the app's folder.
    """
    here = Path.cwd()
    if (here / "edgewire").is_dir() and here != app_dir.resolve():
        raise UsageError(f"Ray would take `edgewire` from {here}: run it in {app_dir}")
