"""Whose turn it is: the nodes that an asynchronous server sends messages to, and who rests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from strategy.base import MAX_CONSECUTIVE_FAILURES

LONGEST = 64  # times the pushes of all nodes that one rests, and one more


@dataclass
class BackoffSchedulerState:
    """`known`: nodes that are sent messages, `count`: how many; `failed`: by node, replies in a row
    of no use, `hopeless`: whose are too many, `resting`: nodes, until so many pushes.
    """

    known: set[int] = field(default_factory=set)
    count: Counter[int] = field(default_factory=Counter)
    failed: Counter[int] = field(default_factory=Counter)
    hopeless: set[int] = field(default_factory=set)
    resting: list[tuple[int, int]] = field(default_factory=list)


class BackoffScheduler:
    """A node that fails again and again rests, ever longer, and so does one that is too far ahead.

    `most`: times the usual number of messages that a node is sent; None: any number.
    """

    def __init__(self, most: float | None, state: BackoffSchedulerState) -> None:
        self._most, self._state = most, state

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self._state.known)

    def add(self, nodes: Iterable[int]) -> list[int]:
        """Take nodes that are there; return the new ones."""
        new = [node for node in nodes if node not in self._state.known]
        self._state.known.update(new)
        return new

    def remove(self, node: int) -> None:
        """Take note that a node is not there."""
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
        """Take note that a node's reply was of use."""
        self._state.failed.pop(node, None)
        self._state.hopeless.discard(node)

    def useless(self, node: int) -> bool:
        """Take note that a node's message brought nothing; True: for long nobody's has."""
        state = self._state
        state.failed[node] += 1
        if state.failed[node] == MAX_CONSECUTIVE_FAILURES:
            state.hopeless.add(node)
        return state.hopeless >= state.known

    def should_wait(self, node: int, done: int) -> bool:
        """Return whether a node is not to be asked at once, after so many pushes of all."""
        state = self._state
        rest = min(2 ** max(state.failed[node] - 1, 0), LONGEST) - 1
        if self._most is not None and not rest:
            counts = sorted(state.count[each] for each in state.known)
            rest = state.count[node] > self._most * counts[len(counts) // 2]
        if rest:
            state.resting.append((done + rest * len(state.known), node))
        return bool(rest)

    def ready(self, done: int, *, idle: bool) -> list[int]:
        """Return nodes that have rested, after so many pushes; all if the server is idle."""
        state = self._state
        if not state.resting:
            return []
        found = [node for until, node in state.resting if until <= done or idle]
        state.resting = [(u, node) for u, node in state.resting if node not in set(found)]
        return found
