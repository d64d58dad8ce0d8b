"""A server and nodes that run rounds of the secure sum, and all that the server sees of them."""

import os
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from edgewire.compression.secure import Coordinator, Member, Roster, Terms, roster_of

# When a node drops: before its shares, before its masked update, before its last answer, never.
SHARES, UPDATE, ANSWER, NEVER = range(4)
SECTIONS = ((40, 1), (1, 1000))


@dataclass
class Group:
    """Nodes with ids 10, 13, 16, ... in one session of a server.

    ``seen``: by kind of message and node, the bytes between the server and the node. ``secrets``:
    by node its state after its shares; `held`: the one after its masked update.
    """

    nodes: int
    sections: tuple[tuple[int, int], ...] = SECTIONS
    masks: bool = True
    run: bytes = field(default_factory=lambda: os.urandom(16))

    def __post_init__(self) -> None:
        self.ids = [10 + 3 * i for i in range(self.nodes)]
        self.states = {node: {} for node in self.ids}
        self.members = {node: Member(self.states[node], self.masks) for node in self.ids}
        self.seen = defaultdict(dict)
        self.secrets, self.held = {}, {}
        for node in self.ids:
            self.seen["run key"][node] = self.members[node].run_key(self.run)

    def terms(self, number: int = 1) -> Terms:
        return Terms(self.run, number, self.sections, bytes(32))

    def roster(self, bare: bool = False, without=()) -> Roster:
        """Begin a round; in mode `sum` each node makes a mask key."""
        keys = {n: (key,) for n, key in self.seen["run key"].items() if n not in without}
        for node in () if bare else keys:
            self.seen["mask key"][node] = self.members[node].mask_key()
            keys[node] += (self.seen["mask key"][node],)
        roster, refused = roster_of(keys, self.masks)
        assert not refused
        return roster

    def values(self, seed: int) -> list[np.ndarray]:
        draw = np.random.default_rng(seed)
        return [draw.integers(-most, most + 1, count) for count, most in self.sections]

    def shared(self, number: int = 1, drops=None) -> tuple[Terms, Roster, Coordinator]:
        """Begin a round and let the nodes share their keys; it has no nodes that drop before."""
        gone = [node for node in self.ids if (drops or {}).get(node, NEVER) == SHARES]
        terms, roster = self.terms(number), self.roster(without=gone)
        server = Coordinator(terms, roster, self.masks)
        for node in self.ids:
            if (drops or {}).get(node, NEVER) > SHARES:
                self.seen["shares"][node] = self.members[node].share(terms, roster)
                server.take_shares(node, self.seen["shares"][node])
                self.secrets[node] = dict(self.states[node])
        return terms, roster, server

    def update(self, node: int, terms: Terms, server: Coordinator) -> bytes:
        """Let a node take the others' shares; return its masked update."""
        self.seen["sealed"][node] = server.sealed_for(node)
        self.members[node].opened(self.seen["sealed"][node])
        return self.members[node].masked(terms, self.values(node))

    def masked(self, number: int = 1, drops=None) -> Coordinator:
        """Run a round until the nodes have sent their masked updates."""
        terms, _, server = self.shared(number, drops)
        for node in self.ids:
            if (drops or {}).get(node, NEVER) > UPDATE:
                self.seen["masked"][node] = self.update(node, terms, server)
                server.take_masked(node, self.seen["masked"][node])
                self.held[node] = dict(self.states[node])
        return server

    def totals(self, number: int = 1, drops=None) -> list[np.ndarray]:
        """Run a whole round; ``drops``: by node when it drops."""
        server = self.masked(number, drops)
        for node in self.ids:
            if (drops or {}).get(node, NEVER) > UPDATE:
                self.seen["alive"][node] = server.alive()
                if (drops or {}).get(node, NEVER) > ANSWER:
                    answer = self.members[node].unmask(self.seen["alive"][node], number)
                    self.seen["answer"][node] = answer
                    server.take_unmasked(node, answer)
        return server.totals()

    def bare(self, number: int = 1) -> list[np.ndarray]:
        """Run a whole round in mode `bare`."""
        terms, roster = self.terms(number), self.roster(bare=True)
        server = Coordinator(terms, roster, self.masks)
        for node in self.ids:
            update = self.members[node].masked_bare(terms, roster, self.values(node))
            self.seen["masked"][node] = update
            server.take_masked(node, update)
        return server.totals()

    def expected(self, nodes) -> list[np.ndarray]:
        """Return the sums of these nodes' values, section by section."""
        return [sum(each) for each in zip(*(self.values(node) for node in nodes), strict=True)]


def equal(found, expected) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
