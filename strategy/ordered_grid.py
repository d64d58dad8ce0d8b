"""The nodes in an order that is the same on every engine, and waiting for nodes."""

from __future__ import annotations

import math
import time
from logging import getLogger

from flwr.serverapp import Grid

from compression.flower.timed_grid import GridWrapper, timed

log = getLogger("edgewire")
LOOK_AGAIN = 5.0  # seconds from one look for new nodes to the next


def count_nodes(grid: Grid) -> int:
    """Return the number of nodes, once it is above 0 and has not changed for half a second."""
    nodes = timed(grid)
    before, count = 0, len(nodes.get_node_ids())
    if nodes.virtual_seconds is None and not count:
        log.warning("no node is online: the run begins when one is")
    while nodes.virtual_seconds is None and (count != before or not count):
        time.sleep(0.5)
        before, count = count, len(nodes.get_node_ids())
    return count


class OrderedGrid(GridWrapper):
    """A wrapper of any grid that lists nodes in an order which is the same on every engine.

    Strategies sample positions in that list, so the same seed draws the same partitions everywhere.
    """

    @property
    def next_look(self) -> float:
        """The moment, by `now`, to look for new nodes again; infinity if none will come."""
        change = self.next_change
        return self.now + LOOK_AGAIN if change is None else change

    def wait_for_nodes(self) -> list[int]:
        """Wait for a node; return the ids of the available nodes, none if no node will come."""
        while not (nodes := list(self.get_node_ids())):
            if self.next_look == math.inf:
                break
            if self.virtual_seconds is None:
                time.sleep(1)  # until the first node comes, or comes back
            else:
                self.pull_before([], self.next_look)
        return nodes
