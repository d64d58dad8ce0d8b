"""`engine=ray`: a job on Flower's Simulation Runtime."""

from __future__ import annotations

import time
from pathlib import Path

from .errors import UsageError
from .host import log
from .job import Job
from .ray import expect_options, run_ray

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
