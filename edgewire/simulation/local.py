"""The local engine (`engine=local`): runs a ServerApp and its ClientApps on a virtual clock."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager

from flwr.app import Context, RecordDict

from edgewire.machine.errors import UsageError
from edgewire.machine.job import Job
from edgewire.machine.own_package import load_object
from edgewire.machine.processes import orderly_exit
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import SERVER, LocalGrid
from edgewire.simulation.workers.limits import Limits, allowed_cores
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool


def run_local(
    job: Job, *, workers: int = 0, memory_mb: float | None = None, pin: bool = False
) -> None:
    """Run a job to its end.

    `workers`: the number of processes for the nodes. 0: one per core. 1: the nodes run in this
    process. `memory_mb`, `pin`: the limits of each of these processes
    (`edgewire.simulation.workers.limits`). With limits, a single worker is a separate process, too.
    """
    refuse(job, workers=workers, memory_mb=memory_mb, pin=pin)
    limits = Limits(memory_mb, pin)
    count = min(workers or allowed_cores(), job.nodes)
    spec = NodeHostSpec(job.client_app, job.nodes, run_id=1, run_config=job.run_config)
    with uncollected(), orderly_exit(), closing(make_pool(spec, count, limits)) as pool:
        grid = LocalGrid(pool, job.nodes, VirtualClock(job.network, job.seed))
        context = Context(1, SERVER, {}, RecordDict(), dict(job.run_config))
        app = job.server_app
        (load_object(app) if isinstance(app, str) else app)(grid, context)


def refuse(_: Job, *, workers: int = 0, memory_mb: float | None = None, pin: bool = False) -> None:
    """Raise `UsageError` for invalid options of `run_local`."""
    Limits(memory_mb, pin).check()
    if workers < 0:
        raise UsageError(f"engine.workers must be at least 0 (one a core), not {workers}")


@contextmanager
def uncollected() -> Iterator[None]:
    """Within this context the garbage collector skips all objects that exist at its start.

    So the collector does not write to these objects, and forked workers share their memory pages.
    Objects that `gc.freeze` has frozen before stay frozen.
    """
    frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
