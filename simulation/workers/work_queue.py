"""Messages that wait for a worker process: which comes next, and who may serve it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import count

from flwr.app import Message

Entry = tuple[float, int, Message]  # when it is due, how many came before: no two are equal


class WorkQueue:
    """What is due first is served first, a node's messages in the order in which they came.

    A node without state may be served by any worker: whoever is free takes the next message, so
    workers end a round together. While a node has messages under way, and once it has state, one
    worker, its home, serves it.
    """

    def __init__(self, workers: int) -> None:
        self._anybodys: list[Entry] = []  # a heap, as each worker's own are
        self._own: list[list[Entry]] = [[] for _ in range(workers)]
        self._home: dict[int, int] = {}  # node -> worker that holds its state, or works for it
        self._stateful: set[int] = set()
        self._under_way: Counter[int] = Counter()  # node -> its messages not yet answered
        self._latest: dict[int, float] = {}  # node -> when the last of these is due
        self._numbers = count()

    def __len__(self) -> int:
        """Return how many messages no worker has taken."""
        return len(self._anybodys) + sum(map(len, self._own))

    @property
    def under_way(self) -> bool:
        """Whether there are messages that are not answered."""
        return bool(self._under_way)

    def put(self, message: Message, due: float) -> None:
        """Take a message; what is due sooner has a lower number."""
        node = message.metadata.dst_node_id
        # not before the node's last one: what it is sent now may build on that
        when = self._latest[node] = max(due, self._latest.get(node, -math.inf))
        self._under_way[node] += 1
        home = self._home.get(node)
        heap = self._anybodys if home is None else self._own[home]
        heappush(heap, (when, next(self._numbers), message))

    def take(self, worker: int) -> Message | None:
        """Return the first message that this worker may serve; it is taken."""
        own = self._own[worker]
        while self._anybodys and not (own and own[0] < self._anybodys[0]):
            entry = heappop(self._anybodys)
            home = self._home.setdefault(entry[2].metadata.dst_node_id, worker)
            if home == worker:
                return entry[2]
            heappush(self._own[home], entry)  # it has a message of this node's, and will be back
        return heappop(own)[2] if own else None

    def answered(self, node: int, has_state: bool) -> None:
        """Note a reply; a node without state and messages is anybody's again."""
        self._under_way[node] -= 1
        if has_state:
            self._stateful.add(node)
        if not self._under_way[node]:
            del self._under_way[node], self._latest[node]
            if node not in self._stateful:
                self._home.pop(node, None)

    def settle(self, homes: Mapping[int, int]) -> None:
        """Take word of nodes that have state, and at which worker; before the first message."""
        self._home.update(homes)
        self._stateful.update(homes)

    def died(self, worker: int, lost: Iterable[Message]) -> None:
        """Note that a worker is gone, with its nodes' state and the messages it had taken."""
        self._stateful -= {node for node, home in self._home.items() if home == worker}
        for message in lost:
            self.answered(message.metadata.dst_node_id, False)
        self._home = {node: home for node, home in self._home.items() if home != worker}
        for entry in self._own[worker]:
            heappush(self._anybodys, entry)
        self._own[worker] = []
