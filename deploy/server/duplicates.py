"""Detects two machines with one node's key and state: only the newer one gets messages.

Flower takes both for the same node, so they would take each other's messages, and the state of one
does not fit what the server has sent to the other. A node's process sends its random number with
each thin pull. A number that returns after a different one belongs to a second machine, because a
restarted process has a new number.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import getLogger

SIZE = 4  # bytes of a number
GONE = 120.0  # seconds without a pull, from a node without a message in hand
_MOST = 64  # earlier numbers that are remembered for a node
log = getLogger("edgewire")


@dataclass
class _Lives:
    """A node's current number, when it came last, and its earlier numbers."""

    now: bytes
    when: float
    before: deque[bytes] = field(default_factory=lambda: deque(maxlen=_MOST))
    told: bool = False


class DuplicateNodes:
    """Which process pulls as which node, by the processes' numbers. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[int, _Lives] = {}

    def is_ousted(self, node: int, number: bytes, busy: Callable[[], bool]) -> bool:
        """Return whether a newer process has taken this one's place and is still there.

        It logs the first such case. A process without a number is never ousted. `busy`: returns
        whether the node has a message in hand: then it may not pull for long.
        """
        if len(number) != SIZE:
            return False
        when = self._clock()
        lives = self._nodes.setdefault(node, _Lives(number, when))
        if number != lives.now:
            if number in lives.before and (when - lives.when < GONE or busy()):
                if not lives.told:
                    log.warning(
                        "two nodes are online with the key of node %d: the one that came first "
                        "gets no messages; give each a key of its own",
                        node,
                    )
                lives.told = True
                return True
            lives.before.append(lives.now)
            lives.now, lives.told = number, False
        lives.when = when
        return False
