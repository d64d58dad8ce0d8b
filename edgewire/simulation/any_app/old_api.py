"""Raises an error if an app of Flower's old API waits for more nodes than the run has.

Flower would wait for a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.server.client_manager import SimpleClientManager

from edgewire.simulation.stall import expect_nodes


@contextmanager
def bounded_wait(nodes: int) -> Iterator[None]:
    """Within this context, waiting for more than `nodes` clients raises `MissingNodesError`."""
    before = SimpleClientManager.wait_for

    def wait_for(self: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
        expect_nodes(num_clients, nodes)
        return before(self, num_clients, timeout)

    SimpleClientManager.wait_for = wait_for  # type: ignore[method-assign]
    try:
        yield
    finally:
        SimpleClientManager.wait_for = before  # type: ignore[method-assign]
