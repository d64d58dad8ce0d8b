"""Which nodes an asynchronous server sends messages to, and which ones rest (backoff)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from strategy.base import MAX_CONSECUTIVE_FAILURES

LONGEST = 64  # the longest rest is LONGEST - 1 times one push of each known node


@dataclass
class BackoffSchedulerState:
    """The state of `BackoffScheduler`.

    `known`: nodes that take part. `count`: node -> messages sent to it. `failed`: node -> failures
    in a row. `hopeless`: nodes with `MAX_CONSECUTIVE_FAILURES` of them. `resting`: (pushes of all
    until which it rests, node).
    """

    known: set[int] = field(default_factory=set)
    count: Counter[int] = field(default_factory=Counter)
    failed: Counter[int] = field(default_factory=Counter)
    hopeless: set[int] = field(default_factory=set)
    resting: list[tuple[int, int]] = field(default_factory=list)


class BackoffScheduler:
    """Lets a node rest that keeps failing, longer after each failure, or that is too far ahead.

    `most`: a node is too far ahead above this many times the median number of messages; None:
    never.
    """

    def __init__(self, most: float | None, state: BackoffSchedulerState) -> None:
        self._most, self._state = most, state

    def __len__(self) -> int:
        """Return the number of known nodes."""
        return len(self._state.known)

    def add(self, nodes: Iterable[int]) -> list[int]:
        """Add the available nodes; return the new ones."""
        new = [node for node in nodes if node not in self._state.known]
        self._state.known.update(new)
        return new

    def remove(self, node: int) -> None:
        """Note that a node is not available."""
        self._state.known.discard(node)

    def forget(self, nodes: set[int]) -> None:
        """Forget nodes that are gone."""
        state = self._state
        state.resting = [(until, node) for until, node in state.resting if node not in nodes]
        state.known -= nodes
        state.hopeless -= nodes
        for node in nodes:
            del state.count[node], state.failed[node]

    def next(self, node: int) -> int:
        """Return the number of a node's next message, from 1 on."""
        self._state.count[node] += 1
        return self._state.count[node]

    def used(self, node: int) -> None:
        """Note that a node's reply was usable."""
        self._state.failed.pop(node, None)
        self._state.hopeless.discard(node)

    def useless(self, node: int) -> bool:
        """Note that a node's message failed; return whether every known node is hopeless."""
        state = self._state
        state.failed[node] += 1
        if state.failed[node] == MAX_CONSECUTIVE_FAILURES:
            state.hopeless.add(node)
        return state.hopeless >= state.known

    def should_wait(self, node: int, done: int) -> bool:
        """Return whether a node must rest before its next message; `done`: pushes so far."""
        state = self._state
        # In pushes of every known node: 0, 0, 1, 3, 7, ... after 0, 1, 2, 3, 4, ... failures.
        rest = min(2 ** max(state.failed[node] - 1, 0), LONGEST) - 1
        if self._most is not None and not rest:
            counts = sorted(state.count[each] for each in state.known)
            rest = state.count[node] > self._most * counts[len(counts) // 2]
        if rest:
            state.resting.append((done + rest * len(state.known), node))
        return bool(rest)

    def ready(self, done: int, *, idle: bool) -> list[int]:
        """Return nodes whose rest is over at `done` pushes; all resting ones if `idle`."""
        state = self._state
        if not state.resting:
            return []
        found = [node for until, node in state.resting if until <= done or idle]
        state.resting = [(u, node) for u, node in state.resting if node not in set(found)]
        return found
