"""The server's side of the secure sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from . import masks as m
from .packing import WORD, Packing
from .shamir import SHARE
from .terms import Peer, Roster, SecureError, Terms, binding, expect_bytes, to_bitmap


def join_keys(
    keys: Mapping[int, tuple[bytes, ...]], masks: bool = True
) -> tuple[Roster, dict[int, str]]:
    """Return the roster of nodes with valid keys, and for each other node the reason.

    ``keys``: a node's run key, and in mode `sum` its mask key of the round. Of two nodes with one
    key only the first is in the roster. Raises `SecureError` if fewer than two nodes are left.
    """
    crypto, seen, peers, refused = m.primitives(masks), set[bytes](), list[Peer](), {}
    probe = m.new_seed()
    for node, given in keys.items():
        try:
            for key in given:
                expect_bytes("a public key", key, 32)
                if key in seen:
                    raise SecureError("another node has this key")
            crypto.pair_secrets(probe, given)  # fails for a point of low order
        except SecureError as error:
            refused[node] = str(error)
        else:
            seen.update(given)
            peers.append(Peer(node, *given))
    return Roster(tuple(peers)), refused


class Coordinator:
    """Runs one round: takes the nodes' answers and returns the totals.

    Mode `sum`: `take_shares` of each node, `sealed_for` each node that shared, `take_masked` of
    each, `alive` for those, `take_unmasked` of each, `totals`. Mode `bare`: `take_masked` and
    `totals`. Methods that take an answer raise `SecureError` for a wrong one, and then leave it
    out. ``masks``: as the nodes' (`Member`).
    """

    def __init__(self, terms: Terms, roster: Roster, masks: bool = True) -> None:
        self._terms, self._roster = terms, roster
        self._bound = binding(terms, roster)
        self._places = {peer.node: place for place, peer in enumerate(roster.peers)}
        self._crypto = m.primitives(masks)
        self.packing = Packing(terms.sections, len(roster))
        self._sum = np.zeros(self.packing.size, WORD)
        self._sealed: dict[int, bytes] = {}  # by place
        self._present: list[int] | None = None if terms.threshold else [*range(len(roster))]
        self._masked: set[int] = set()
        self._alive: list[int] | None = None
        self._unmasked: dict[int, bytes] = {}

    def take_shares(self, node: int, sealed: bytes) -> None:
        """Take a node's sealed shares, 50 bytes for each other node."""
        place = self._due(node, self._sealed, self._present is None)
        expect_bytes(
            f"the sealed shares of node {node}", sealed, m.SEALED * (len(self._roster) - 1)
        )
        self._sealed[place] = sealed

    def sealed_for(self, node: int) -> bytes:
        """Return the bitmap of the nodes that shared, and their sealed shares for ``node``.

        From the first call on no shares are taken. Raises `SecureError` if too few have shared.
        """
        if self._present is None:
            self._expect_enough(self._sealed, "shared their keys")
            self._present = sorted(self._sealed)
        own, parts = self._places[node], [to_bitmap(self._present, len(self._roster))]
        for place in self._present:
            if place != own:
                start = (own - (own > place)) * m.SEALED
                parts.append(self._sealed[place][start : start + m.SEALED])
        return b"".join(parts)

    def take_masked(self, node: int, masked: bytes) -> None:
        """Add a node's masked update; raises PayloadError for a wrong length."""
        place = self._due(node, self._masked, self._alive is None and self._present is not None)
        if place not in (self._present or ()):
            raise SecureError(f"node {node} has not shared its keys")
        self._sum += self.packing.from_bytes(masked)
        self._masked.add(place)

    def alive(self) -> bytes:
        """Return the bitmap of the nodes in the sum; from now on no masked update is taken.

        Raises `SecureError` if they are too few.
        """
        if self._alive is None:
            self._expect_enough(self._masked, "sent masked updates")
            self._alive = sorted(self._masked)
        return to_bitmap(self._alive, len(self._roster))

    def take_unmasked(self, node: int, shares: bytes) -> None:
        """Take a node's shares of the secrets, 17 bytes for each node."""
        place = self._due(node, self._unmasked, self._alive is not None)
        if place not in (self._alive or ()):
            raise SecureError(f"node {node} is not in the sum")
        expect_bytes(f"the shares from node {node}", shares, SHARE * len(self._roster))
        self._unmasked[place] = shares

    def totals(self) -> list[NDArray[np.int64]]:
        """Return for each section the sums (count,) over the nodes in the sum.

        Raises `SecureError` if too few nodes have answered, and if a dropped node's key is not the
        one of its shares; PayloadError if the sums are none of valid updates.
        """
        self.alive()
        alive, words = self._alive or [], self._sum.copy()
        if self._terms.threshold:
            self._expect_enough(self._unmasked, "answered to `unmask`")
            for place in self._present or ():
                secret = self._secret_of(place)
                if place in alive:
                    self._crypto.add_mask(words, secret, m.SELF, self._bound, -1)
                else:
                    keys = [self._roster.peers[other].mask_key for other in alive]
                    pairs = dict(zip(alive, self._crypto.pair_secrets(secret, keys), strict=True))
                    m.add_pair_masks(self._crypto, words, place, pairs, m.PAIR, self._bound)
        return self.packing.totals(words, len(alive))

    def _secret_of(self, place: int) -> bytes:
        """Return the seed of a node's self mask if it is in the sum, else that of its mask key."""
        shares = {
            other: self._unmasked[other][place * SHARE : (place + 1) * SHARE]
            for other in sorted(self._unmasked)[: self._terms.threshold]
        }
        return self._crypto.join(shares)

    def _due(self, node: int, taken: Iterable[int], open_now: bool) -> int:
        place = self._places.get(node)
        if place is None:
            raise SecureError(f"node {node} is not in the roster of the round")
        if not open_now or place in taken:
            raise SecureError(f"node {node} answered late, early or twice")
        return place

    def _expect_enough(self, places: Iterable[int], what: str) -> None:
        """Raise `SecureError`, with the missing nodes, if fewer than the threshold are there."""
        there, nodes = set(places), len(self._roster)
        due = self._terms.threshold or nodes
        if len(there) < due:
            missing = [str(p.node) for i, p in enumerate(self._roster.peers) if i not in there]
            raise SecureError(
                f"round {self._terms.round}: {len(there)} of {nodes} nodes {what}, and {due} are "
                f"needed; these are missing: {', '.join(missing[:20])}"
            )
