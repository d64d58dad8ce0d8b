"""Chooses a ServerApp's grid: a grid that sends bundles, if the server accepts bundles.

`bundled` imports Flower's internals only when it is called. If a release of Flower lacks them,
`bundled` logs a warning, and the run continues with Flower's grid.
"""

from __future__ import annotations

from logging import getLogger

import httpx
from flwr.serverapp import Grid

log = getLogger("edgewire")


def bundled(grid: Grid) -> Grid:
    """Return a `BundledGrid` if `grid` is Flower's and its server accepts bundles, else `grid`."""
    try:
        from flwr.superlink.grid.http_grid import HttpGrid

        if isinstance(grid, HttpGrid):
            from edgewire.protocol.bundled_grid import BundledGrid, Connection

            client = Connection(grid)
            if client.takes_bundles():
                return BundledGrid(grid, client)
            log.warning("this server takes no bundles: each object is sent by itself")
    except (ImportError, AttributeError, httpx.HTTPError) as error:
        log.warning("no bundles, each object is sent by itself: %s", error)
    return grid
