"""`engine=ray`: a job on Flower's Simulation Runtime."""

from __future__ import annotations

from .clock import Network
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
    if asked := unlike(job.network, job.ideal):
        words = ", ".join(f"network.{key}={value}" for key, (value, _) in asked.items())
        instead = "network=ideal"
        if len(asked) == 1 and "classes" not in asked:
            instead = "".join(f"network.{key}={none}" for key, (_, none) in asked.items())
        raise UsageError(
            f"engine=ray has no virtual clock and cannot honour {words}: give engine=local, "
            f"or {instead}"
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


def unlike(network: Network, ideal: Network) -> dict[str, tuple[str, str]]:
    """Return the keys in which a network is not the ideal one, with its value and the ideal's.

    Left out are keys that others make of no effect: how long nobody waits, when nobody comes back.
    """
    without = {"waiting_seconds"} if network.waiting == "none" else set[str]()
    without |= set() if network.crash else {"rejoin_seconds"}
    keys = [key for key in vars(ideal) if key not in without]
    values = {key: (getattr(network, key), getattr(ideal, key)) for key in keys}
    return {
        key: (_word(value), _word(none)) for key, (value, none) in values.items() if value != none
    }


def _word(value: object) -> str:
    """Write a value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(value) + "}"
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)
