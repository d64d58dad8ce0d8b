"""`engine=ray`: a job on Flower's Simulation Runtime."""

from __future__ import annotations

from .job import Job
from .ray import run_ray


def run_on_ray(
    job: Job, *, actors: int = 0, gpus_per_client: float = 0.0, address: str | None = None
) -> None:
    """Run a job to its end; options as `run_ray`, `actors` 0: one a core. Its log: `ray.log`."""
    run_ray(
        job.app_dir,
        run_config=job.run_config,
        num_nodes=job.nodes,
        actors=actors or None,
        gpus_per_client=gpus_per_client,
        address=address,
        log_file=job.folder / "ray.log",
    )
