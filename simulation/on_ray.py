"""`engine=ray`: a job on Flower's Simulation Runtime."""

from __future__ import annotations

from .errors import UsageError
from .job import Job
from .ray import run_ray


def run_on_ray(
    job: Job, *, actors: int = 0, gpus_per_client: float = 0.0, address: str | None = None
) -> None:
    """Run a job to its end; options as `run_ray`, `actors` 0: one a core. Its log: `ray.log`.

    Raises `UsageError` for what Ray would drop without a word, and as `run_ray`.
    """
    refuse(job, gpus_per_client)
    run_ray(
        job.app_dir,
        run_config=job.run_config,
        num_nodes=job.nodes,
        actors=actors or None,
        gpus_per_client=gpus_per_client,
        address=address,
        log_file=job.folder / "ray.log",
    )


def refuse(job: Job, gpus_per_client: float) -> None:
    """Raise `UsageError` for what this engine cannot honour."""
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
