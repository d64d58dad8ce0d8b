"""Nodes in this process, and grids that reach them."""

from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool


def pool_of(app="edgewire.client.app:app", nodes=3, run_config=None, workers=1):
    return make_pool(NodeHostSpec(app, nodes, 1, run_config or {}), workers)


def grid_of(app="edgewire.client.app:app", nodes=3, run_config=None, kind=LocalGrid, clock=None):
    """Return a grid of the class `kind`, a subclass of `LocalGrid`, with a new pool of nodes."""
    return kind(pool_of(app, nodes, run_config), nodes, clock)
