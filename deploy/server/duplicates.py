"""Two machines with one key and one state: only the one that came last is handed messages.

Both go on as the same node, which to Flower they are, and would take each other's messages: what
the one keeps of a run does not fit what the server has sent the other. A node's process says with
each thin pull by which number it goes. A number that comes back after another one has come is of a
second machine: a process that is started again has a new one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import getLogger

SIZE = 4  # bytes of a number
GONE = 120.0  # seconds without a pull, of who has no message in hand
_MOST = 64  # numbers of a node before the one at hand
log = getLogger("edgewire")


@dataclass
class _Lives:
    """A node's number at hand, when that came last, and those before."""

    now: bytes
    when: float
    before: deque[bytes] = field(default_factory=lambda: deque(maxlen=_MOST))
    told: bool = False


class DuplicateNodes:
    """Who pulls as which node, by the processes' numbers. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[int, _Lives] = {}

    def is_ousted(self, node: int, number: bytes, busy: Callable[[], bool]) -> bool:
        """Return whether another process has come since this one did, and is there still.

        The first time that one has is logged. Who says no number is never ousted. `busy`: returns
        whether the node has a message in hand: then it may not ask for long.
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
