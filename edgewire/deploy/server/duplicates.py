"""Detects two machines with the key and the state of one node: only the newer one gets messages.

Flower treats the two machines as one node. Each machine would get some of the node's messages, and
a message would not match the machine's state. So each process of a node chooses a random number and
sends this number with each compact pull (`edgewire.deploy.server.api`), which asks for the next
message. A restarted process has a new number. If an old number returns after a new one, two
processes run at the same time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import getLogger

from edgewire.machine.liveness import GONE

SIZE = 4  # bytes of a process's random number
_MOST = 64  # earlier numbers that are remembered for a node
log = getLogger("edgewire")


@dataclass
class _Processes:
    """The processes of a node: the current number, the time of its last pull, earlier numbers.

    `logged`: whether the log has already reported that an older process still runs.
    """

    now: bytes
    when: float
    before: deque[bytes] = field(default_factory=lambda: deque(maxlen=_MOST))
    logged: bool = False


class DuplicateNodes:
    """Decides which of a node's processes gets messages. `clock`: returns the time in seconds.

    `called`: returns what the log calls the node with an id.
    """

    called: Callable[[int], str] = "node {}".format

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[int, _Processes] = {}

    def is_ousted(self, node: int, number: bytes, busy: Callable[[], bool]) -> bool:
        """Return whether a process of a node must get no messages, because a newer one runs.

        The first case of two such processes is logged.

        `number`: the random number of the process that pulls, 4 bytes (`SIZE`). The result is False
        for any other length. `busy`: returns whether the node is working on a message. During
        this work a process may not pull for a long time.
        """
        if len(number) != SIZE:
            return False
        when = self._clock()
        processes = self._nodes.setdefault(node, _Processes(number, when))
        if number != processes.now:
            if number in processes.before and (when - processes.when < GONE or busy()):
                if not processes.logged:
                    log.warning(
                        "two nodes are online with the key of %s: the one that came first "
                        "gets no messages; give each a key of its own",
                        self.called(node),
                    )
                processes.logged = True
                return True
            processes.before.append(processes.now)
            processes.now, processes.logged = number, False
        processes.when = when
        return False
