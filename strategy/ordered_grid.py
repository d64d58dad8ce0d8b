"""The nodes as strategies see them: waited for, and in an order that every engine agrees on."""

from __future__ import annotations

import math
import time
from logging import getLogger

from flwr.serverapp import Grid

from compression.flower.timed_grid import GridWrapper, timed

log = getLogger("edgewire")
LOOK_AGAIN = 5.0  # seconds from one look for new nodes to the next


def count_nodes(grid: Grid) -> int:
    """Return how many nodes there are, once there are any and no more have come for a while."""
    nodes = timed(grid)
    before, count = 0, len(nodes.get_node_ids())
    if nodes.virtual_seconds is None and not count:
        log.warning("no node is online: the run begins when one is")
    while nodes.virtual_seconds is None and (count != before or not count):
        time.sleep(0.5)
        before, count = count, len(nodes.get_node_ids())
    return count


class OrderedGrid(GridWrapper):
    """Any grid, with its nodes in an order that every engine agrees on: strategies sample places.

    The same seed draws the same partitions everywhere.
    """

    @property
    def next_look(self) -> float:
        """The moment of `now` at which to look for new nodes again; infinity: none will come."""
        change = self.next_change
        return self.now + LOOK_AGAIN if change is None else change

    def wait_for_nodes(self) -> list[int]:
        """Return the ids of the nodes that are there, once there is one; none if none will come."""
        while not (nodes := list(self.get_node_ids())):
            if self.next_look == math.inf:
                break
            if self.virtual_seconds is None:
                time.sleep(1)  # for the first node to come, or to come back
            else:
                self.pull_before([], self.next_look)
        return nodes
