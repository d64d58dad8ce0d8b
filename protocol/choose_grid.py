"""Chooses a ServerApp's grid: one that sends bundles, where the server takes them.

The function imports what it uses of Flower's internals: with another release of Flower a run logs a
warning and goes on.
"""

from __future__ import annotations

from logging import getLogger

import httpx
from flwr.serverapp import Grid

from compression.flower.timed_grid import TimedGrid

log = getLogger("edgewire")


def bundled(grid: Grid | TimedGrid) -> Grid | TimedGrid:
    """Return a `BundledGrid` for a grid of Flower's whose server takes bundles, else `grid`."""
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
