"""Which grid a ServerApp goes by: one that sends bundles, where the server takes them.

What is asked of Flower's insides is imported where it is tried: another release of Flower costs a
warning, and no run.
"""

from __future__ import annotations

from logging import getLogger

import httpx
from flwr.serverapp import Grid

from compression.flower.timed_grid import TimedGrid

log = getLogger("edgewire")


def bundled(grid: Grid | TimedGrid) -> Grid | TimedGrid:
    """Return a grid that sends bundles if this is one of Flower's to a server that takes them."""
    try:
        from flwr.superlink.grid.http_grid import HttpGrid

        if isinstance(grid, HttpGrid):
            from protocol.bundled_grid import BundledGrid, Connection

            client = Connection(grid)
            if client.takes_bundles():
                return BundledGrid(grid, client)
            log.warning("this server takes no bundles: each object is sent by itself")
    except (ImportError, AttributeError, httpx.HTTPError) as error:
        log.warning("no bundles, each object is sent by itself: %s", error)
    return grid
