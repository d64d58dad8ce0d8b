"""Runs any Flower app on the local engine."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import cast

from flwr.app import Context
from flwr.server.client_manager import SimpleClientManager
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.run import Run

from edgewire.conf.network import Network
from edgewire.machine.errors import EngineError
from edgewire.machine.job import Job
from edgewire.simulation.any_app.app import App
from edgewire.simulation.any_app.grid import GuestGrid
from edgewire.simulation.any_app.node import GuestNode, seeded
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.local import run_local
from edgewire.simulation.stall import expect_nodes
from edgewire.task.errors import described


def run_app(app: App, *, nodes: int, workers: int, network: Network, seed: int) -> GuestGrid:
    """Run an app to its end, in this process and its workers; return the grid with its counts.

    `workers`: the number of processes for the nodes. 0: one per core. 1: the nodes run in this
    process. This process imports the app's modules. Raises `UsageError` for an app that cannot be
    loaded, and `EngineError` if the ServerApp raises an error. The log then has the traceback.
    """
    with seeded(seed):
        server_app, _ = app.load_both()  # reports mistakes early; forked workers share the modules
    grids = list[GuestGrid]()

    def serve(grid: Grid, context: Context) -> None:
        run = Run.create_empty(context.run_id)
        run.fab_id, run.fab_version = app.name, app.version
        run.override_config = dict(app.run_config)
        grids.append(GuestGrid(cast(LocalGrid, grid), run))
        try:
            with seeded(seed), bounded_wait(nodes):
                server_app(grids[0], context)
        except EngineError:
            raise
        except Exception as error:
            log(ERROR, traceback.format_exc())
            reason = described(error)
            raise EngineError(f"the ServerApp raised {reason}") from error

    job = Job(
        app.folder,
        app.run_config,
        nodes,
        Path.cwd(),
        seed,
        network,
        serve,
        GuestNode(app, seed),
    )
    sys.stdout.flush()  # else each forked process would print the buffer again
    run_local(job, workers=workers)
    return grids[0]


@contextmanager
def bounded_wait(nodes: int) -> Iterator[None]:
    """Within this context, waiting for more than `nodes` clients raises `MissingNodesError`.

    A ServerApp of Flower's old API would wait for a day.
    """
    before = SimpleClientManager.wait_for

    def wait_for(self: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
        expect_nodes(num_clients, nodes)
        return before(self, num_clients, timeout)

    SimpleClientManager.wait_for = wait_for  # type: ignore[method-assign]
    try:
        yield
    finally:
        SimpleClientManager.wait_for = before  # type: ignore[method-assign]
