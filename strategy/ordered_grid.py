"""Lists nodes in the same order in simulation and deployment, and waits for nodes."""

import math
import time
from collections.abc import Callable, Iterable
from logging import getLogger

from flwr.app import Message
from flwr.serverapp import Grid

from edgewire.compression.flower.records import metadata_of
from edgewire.compression.flower.timed_grid import GridWrapper, timed

log = getLogger("edgewire")
LOOK_AGAIN = 5.0  # seconds between two searches for new nodes


def count_nodes(grid: Grid) -> int:
    """Wait until the number of nodes is above 0 and stable for half a second; return the number."""
    nodes = timed(grid)
    before, count = 0, len(nodes.get_node_ids())
    if nodes.virtual_seconds is None and not count:
        log.warning("no node is online: the run begins when one is")
    while nodes.virtual_seconds is None and (count != before or not count):
        time.sleep(0.5)
        before, count = count, len(nodes.get_node_ids())
    return count


class OrderedGrid(GridWrapper):
    """A wrapper of any grid that lists the nodes in the same order in simulation and deployment.

    Strategies sample positions in this list. So the same seed always selects the nodes with the
    same partitions of the data. `refuse` gets each reply that answers none of the messages for
    whose replies the strategy waits; None: the strategy gets such replies too. A strategy passes to
    `discard` the replies that it fetches and does not use.
    """

    refuse: Callable[[Message], None] | None = None
    discard: Callable[[Message], None] = staticmethod(lambda reply: None)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies, until the deadline; pass others than to these to `refuse`.

        A node may answer a message twice, or a message that the server has never sent.
        """
        if self.refuse is None:
            return super().pull_before(message_ids, deadline)
        asked = dict.fromkeys(message_ids)
        while replies := super().pull_before(asked, deadline):
            found = []
            for reply in replies:
                if (answered := metadata_of(reply)["_reply_to_message_id"]) in asked:
                    del asked[answered]
                    found.append(reply)
                else:
                    self.refuse(reply)
            if found:
                return found
        return []

    @property
    def next_look(self) -> float:
        """The value of `now` at which to look for new nodes; infinity if no node will appear."""
        change: float | None = self.next_change
        return float(self.now + LOOK_AGAIN) if change is None else change

    def wait_for_nodes(self, least: int = 1, why: str = "") -> list[int]:
        """Wait for `least` nodes, and return the ids of all; fewer if no more will appear.

        `why`: what asks for so many; the log says so if the server waits.
        """
        while len(nodes := list(self.get_node_ids())) < least:
            if self.next_look == math.inf:
                break
            if why:
                text = "%d nodes are online, and %s asks for %d: the server waits"
                log.warning(text, len(nodes), why, least)
                why = ""
            if self.virtual_seconds is None:
                time.sleep(1)  # until a node appears
            else:
                self.pull_before([], self.next_look)
        return nodes
