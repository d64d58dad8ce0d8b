"""The server's side of the secure sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import urandom

import numpy as np
from numpy.typing import NDArray

from .masks import PAIR, SEALED, SELF, Masks
from .packing import WORD, Packing
from .shamir import SECRET, SHARE
from .terms import KEY, Peer, Roster, SecureError, Terms, binding, expect_bytes, to_bitmap


def roster_of(
    keys: Mapping[int, tuple[bytes, ...]], masks: bool = True
) -> tuple[Roster, dict[int, str]]:
    """Return the roster of the nodes with valid keys, and the reason for each node left out.

    ``keys``: by node its run key, and in mode `sum` its mask key. Of two nodes with one key the
    first one is in the roster. Raises `SecureError` if fewer than two nodes are left.
    """
    seen, peers, refused, seed = set[bytes](), list[Peer](), dict[int, str](), urandom(SECRET)
    for node, given in keys.items():
        try:
            for key in given:
                expect_bytes("a public key", key, KEY)
            Masks(masks).secrets(seed, given)  # fails for a key that would fail at the nodes
            if len(seen.union(given)) < len(seen) + len(given):
                raise SecureError("it has the key of another node, or one key twice")
        except SecureError as error:
            refused[node] = str(error)
        else:
            seen.update(given)
            peers.append(Peer(node, *given))
    return Roster(tuple(peers)), refused


class Coordinator:
    """One round at the server, which takes the nodes' answers and returns the totals.

    Mode `sum`: `take_shares` of each node, `sealed_for` those that shared, `take_masked`, `alive`
    for those in the sum, `take_unmasked`, `totals`. Mode `bare`: `take_masked` and `totals`. A
    method that takes an answer raises PayloadError for a wrong one and does not use it. ``masks``:
    as `Member`'s.
    """

    def __init__(self, terms: Terms, roster: Roster, masks: bool = True) -> None:
        self._terms, self._roster, self._masks = terms, roster, Masks(masks)
        self._bound, self._due = binding(terms, roster), roster.threshold
        self._packing = Packing(terms.sections, len(roster))
        self._places = {peer.node: place for place, peer in enumerate(roster.peers)}
        self._sum = np.zeros(self._packing.size, WORD)
        # By place: the answers, and the nodes that go on, None until the step before is over.
        self._every = range(len(roster))
        self._sealed: dict[int, bytes] = {}
        self._masked: set[int] = set()
        self._alive: list[int] | None = None
        self._unmasked: dict[int, bytes] = {}

    def take_shares(self, node: int, sealed: bytes) -> None:
        """Take a node's sealed shares, 50 bytes for each other node."""
        place = self._expected(node, self._every, self._sealed)
        expect_bytes("a node's sealed shares", sealed, SEALED * (len(self._roster) - 1))
        self._sealed[place] = sealed

    def sealed_for(self, node: int) -> bytes:
        """Return the other nodes' sealed shares for ``node``.

        Raises `SecureError` if not all have shared: the round begins again without the missing.
        """
        own = self._expected(node, self._every, ())
        self._enough(self._sealed, "shared their keys", len(self._roster))
        starts = {i: (own - (own > i)) * SEALED for i in self._every if i != own}
        return b"".join(self._sealed[i][at : at + SEALED] for i, at in starts.items())

    def take_masked(self, node: int, masked: bytes) -> None:
        """Add a node's masked update to the sum."""
        shared = not self._due or len(self._sealed) == len(self._every)
        due = self._every if shared and self._alive is None else None
        place = self._expected(node, due, self._masked)
        self._sum += self._packing.from_bytes(masked)
        self._masked.add(place)

    def alive(self) -> bytes:
        """Return the bitmap of the nodes in the sum; afterwards no masked update is taken.

        Raises `SecureError` if they are too few.
        """
        if self._alive is None:
            self._alive = self._enough(self._masked, "sent masked updates")
        return to_bitmap(self._alive, len(self._roster))

    def take_unmasked(self, node: int, shares: bytes) -> None:
        """Take a node's shares of the secrets, 17 bytes for each node."""
        place = self._expected(node, self._alive, self._unmasked)
        expect_bytes("a node's shares for the sum", shares, SHARE * len(self._roster))
        self._unmasked[place] = shares

    def totals(self) -> list[NDArray[np.int64]]:
        """Return for each section the sums (count,) over the nodes in the sum.

        Raises `SecureError` if too few nodes have answered or their shares do not fit, and
        PayloadError for sums that no valid updates have.
        """
        self.alive()
        alive, words, peers = self._alive or [], self._sum.copy(), self._roster.peers
        answered = self._enough(self._unmasked, "answered to the end") if self._due else []
        for place, peer in enumerate(peers) if self._due else ():
            # If more than the threshold answered, the second is another choice of shares.
            seed, other = (self._joined(place, each) for each in (answered, answered[::-1]))
            fits = place in alive or not self._masks.on
            if seed != other or not (fits or self._masks.public_key(seed) == peer.mask_key):
                raise SecureError("the shares of a node's secret do not fit together")
            if place in alive:
                self._masks.add(words, place, {place: seed}, SELF, self._bound, -1)
            else:
                secrets = self._masks.secrets(seed, [peers[i].mask_key for i in alive])
                pairs = dict(zip(alive, secrets, strict=True))
                self._masks.add(words, place, pairs, PAIR, self._bound)
        return self._packing.totals(words, len(alive))

    def _joined(self, place: int, answered: Sequence[int]) -> bytes:
        """Return a node's seed from the shares of the first nodes of ``answered``."""
        cut = slice(place * SHARE, (place + 1) * SHARE)
        first = answered[: self._due]
        return self._masks.join({i: self._unmasked[i][cut] for i in first})

    def _expected(self, node: int, among: Collection[int] | None, taken: Collection[int]) -> int:
        """Return the place of a node whose answer is due: one of ``among``, not yet ``taken``."""
        place = self._places.get(node, -1)
        if among is None or place not in among or place in taken:
            raise SecureError("the node is not in this step of the round, or answered before")
        return place

    def _enough(self, there: Collection[int], what: str, due: int = 0) -> list[int]:
        """Return the places in order; raises `SecureError` for fewer than ``due``.

        0: the threshold, and in mode `bare` all.
        """
        due = due or self._due or len(self._roster)
        if len(there) < due:
            raise SecureError(f"{len(there)} of {len(self._roster)} nodes {what}, and {due} must")
        return sorted(there)
