"""Decides when an asynchronous server sends a node its next message (backoff)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

# The longest pause of a node: until the server has received (LONGEST - 1) * (number of known
# nodes) updates.
LONGEST = 64


@dataclass
class BackoffScheduler:
    """Delays messages to a node that fails repeatedly, or that is faster than the other nodes.

    A checkpoint holds it. `known`: the nodes that take part. `count`: by node, the number of
    messages sent to it. `resting`: by node, the number of updates received by the server at which
    its pause ends.
    """

    known: set[int] = field(default_factory=set)
    count: Counter[int] = field(default_factory=Counter)
    resting: dict[int, int] = field(default_factory=dict)

    def add(self, nodes: Iterable[int]) -> list[int]:
        """Add the available nodes; return the new ones."""
        new = [node for node in nodes if node not in self.known]
        self.known.update(new)
        return new

    def next(self, node: int) -> int:
        """Count a node's next message, and return its number, from 1."""
        self.count[node] += 1
        return self.count[node]

    def should_wait(self, node: int, done: int, failed: int, most: float | None) -> bool:
        """Return whether a node must pause before its next message.

        `done`: the number of updates that the server has received so far. `failed`: the node's
        consecutive failures; the pause gets longer with each. `most`: a node also pauses if it got
        more than `most` times the median number of messages; None switches this off.
        """
        # After 0, 1, 2, 3, 4, ... failures a node pauses for 0, 0, 1, 3, 7, ... updates per known
        # node.
        rest = min(2 ** max(failed - 1, 0), LONGEST) - 1
        if most is not None and not rest:
            counts = sorted(self.count[each] for each in self.known)
            rest = self.count[node] > most * counts[len(counts) // 2]
        if rest:
            self.resting[node] = done + rest * len(self.known)
        return bool(rest)

    def ready(self, done: int, *, idle: bool) -> list[int]:
        """Return the nodes whose pause ends at `done` received updates, or all if `idle`."""
        found = [node for node, until in self.resting.items() if until <= done or idle]
        for node in found:
            del self.resting[node]
        return found
