"""The queue of messages for the worker processes: it decides which worker gets which message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import count

from flwr.app import Message

Entry = tuple[float, int, Message]  # due, unique sequence number: messages are never compared


class WorkQueue:
    """A priority queue by due time; the messages of one node keep their order.

    Any worker may serve a node without state. A free worker takes the next message, so the workers
    finish a round at about the same time. A node with state, or with messages under way, has a
    home: the only worker that may serve this node.
    """

    def __init__(self, workers: int) -> None:
        self._anybodys: list[Entry] = []  # a heap of messages that any worker may take
        self._own: list[list[Entry]] = [[] for _ in range(workers)]
        self._home: dict[int, int] = {}  # node -> worker with its state or its messages
        self._stateful: set[int] = set()
        self._under_way: Counter[int] = Counter()  # node -> number of its unanswered messages
        self._latest: dict[int, float] = {}  # node -> due time of its last unanswered message
        self._numbers = count()

    def __len__(self) -> int:
        """Return the number of messages that no worker has taken."""
        return len(self._anybodys) + sum(map(len, self._own))

    @property
    def under_way(self) -> bool:
        """Whether some messages are unanswered."""
        return bool(self._under_way)

    def put(self, message: Message, due: float) -> None:
        """Add a message; those with a lower `due` are served first."""
        node = message.metadata.dst_node_id
        # Not before the node's last message, because the new message may depend on it.
        when = self._latest[node] = max(due, self._latest.get(node, -math.inf))
        self._under_way[node] += 1
        home = self._home.get(node)
        heap = self._anybodys if home is None else self._own[home]
        heappush(heap, (when, next(self._numbers), message))

    def take(self, worker: int) -> Message | None:
        """Remove and return the first message that this worker may serve, or None."""
        own = self._own[worker]
        while self._anybodys and not (own and own[0] < self._anybodys[0]):
            entry = heappop(self._anybodys)
            home = self._home.setdefault(entry[2].metadata.dst_node_id, worker)
            if home == worker:
                return entry[2]
            heappush(self._own[home], entry)  # the node's home takes it later
        return heappop(own)[2] if own else None

    def answered(self, node: int, has_state: bool) -> None:
        """Record a reply. A node without state and without messages loses its home."""
        self._under_way[node] -= 1
        if has_state:
            self._stateful.add(node)
        if not self._under_way[node]:
            del self._under_way[node], self._latest[node]
            if node not in self._stateful:
                self._home.pop(node, None)

    def restore_homes(self, homes: Mapping[int, int]) -> None:
        """Set the home of each node with state. Call it before the first message."""
        self._home.update(homes)
        self._stateful.update(homes)

    def died(self, worker: int, lost: Iterable[Message]) -> None:
        """Record that a worker has died: its nodes' states and the messages `lost` are lost."""
        self._stateful -= {node for node, home in self._home.items() if home == worker}
        for message in lost:
            self.answered(message.metadata.dst_node_id, False)
        self._home = {node: home for node, home in self._home.items() if home != worker}
        for entry in self._own[worker]:
            heappush(self._anybodys, entry)
        self._own[worker] = []
