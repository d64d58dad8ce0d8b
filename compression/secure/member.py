"""A node's side of the secure sum."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from hashlib import sha256
from typing import Any

from numpy.typing import NDArray

from . import masks as m
from .packing import Packing
from .shamir import SHARE
from .terms import (
    RUN,
    Roster,
    SecureError,
    Terms,
    binding,
    expect_bytes,
    from_bitmap,
    threshold_of,
    to_bitmap,
)

State = MutableMapping[str, Any]  # of bytes and ints: a dict or a ConfigRecord
KEYED, SHARED, MASKED = 1, 2, 3  # what the node has sent in this round
RUN_STATE = ("run", "run_seed", "last")  # what lasts from round to round


class Member:
    """A node; each method answers one message of the server.

    ``state``: all that the node knows between messages, empty at first. It holds secrets. The
    caller stores it before it sends what a method has returned, and shows it to nobody. ``masks``:
    False simulates without cryptography, and protects nothing.

    Mode `sum`: `run_key` once, then in each round `mask_key`, `share`, `masked`, `unmask`. Mode
    `bare`: `run_key` once, then `masked_bare` in each round. A method raises `SecureError` for a
    message that it refuses, and PayloadError for values that do not fit; the state is then as it
    was.
    """

    def __init__(self, state: State, masks: bool = True) -> None:
        self._state = state
        self._crypto = m.primitives(masks)

    def run_key(self, run: bytes) -> bytes:
        """Return this node's public key, 32 bytes, for a session of the server.

        ``run``: the session's 16 random bytes. Another session gets another key, and ends all that
        was open.
        """
        expect_bytes("the run's nonce", run, RUN)
        if self._state.get("run") != run:
            self._set({"run": run, "run_seed": m.new_seed(32), "last": -1})
        return self._crypto.public_key(self._state["run_seed"])

    def mask_key(self) -> bytes:
        """Begin a round: return a new public key, 32 bytes; an open round is given up."""
        self._expect_run()
        seed = m.new_seed()
        key = self._crypto.public_key(seed)
        self._set(self._kept() | {"stage": KEYED, "mask_seed": seed})
        return key

    def share(self, terms: Terms, roster: Roster, least: int = 2, own_hash: bytes = b"") -> bytes:
        """Return the sealed shares for the other nodes, 50 bytes each, in the roster's order.

        ``least``: the fewest nodes whose sum this node's owner allows. ``own_hash``: a hash of what
        must be the same at all nodes, and need not be known to the server.
        """
        self._expect(KEYED, "share")
        seed = self._state["mask_seed"]
        own = self._place(terms, roster, least, self._crypto.public_key(seed))
        bound, self_seed = binding(terms, roster), m.new_seed()
        seal_bound = sha256(bound + own_hash).digest()
        split = [self._crypto.split(s, terms.threshold, len(roster)) for s in (self_seed, seed)]
        shares = [of_self + of_mask for of_self, of_mask in zip(*split, strict=True)]
        sealed = b"".join(
            self._crypto.seal(
                self._run_secret(peer.run_key), seal_bound, (own, place), shares[place]
            )
            for place, peer in enumerate(roster.peers)
            if place != own
        )
        self._set(
            self._kept()
            | {"stage": SHARED, "mask_seed": seed, "self_seed": self_seed, "shares": shares[own]}
            | {"roster": roster.to_bytes(), "binding": bound, "own": own, "least": least}
            | {"seal_binding": seal_bound}
        )
        return sealed

    def masked(self, sealed: bytes, terms: Terms, values: Sequence[NDArray[Any]]) -> bytes:
        """Return this node's masked update.

        ``sealed``: the bitmap of the nodes that have shared, then their 50 bytes for this node, in
        the roster's order. ``terms``: as this node sees them now, with the hash of the model that
        it got. ``values``: integers (count,) for each section of the terms.
        """
        self._expect(SHARED, "masked")
        state, roster = self._state, Roster.from_bytes(self._state["roster"])
        own, bound, nodes = state["own"], state["binding"], len(roster)
        if binding(terms, roster) != bound:
            raise SecureError(
                "the round's terms or model differ from those for which this node gave its keys"
            )
        size = len(to_bitmap((), nodes))
        present = self._allowed(sealed[:size], range(nodes), nodes)
        expect_bytes("the sealed shares", sealed[size:], m.SEALED * (len(present) - 1))
        shares = bytearray(m.PLAIN * nodes)
        shares[own * m.PLAIN : (own + 1) * m.PLAIN] = state["shares"]
        others = [place for place in present if place != own]
        for at, place in enumerate(others):
            secret = self._run_secret(roster.peers[place].run_key)
            part = sealed[size + at * m.SEALED : size + (at + 1) * m.SEALED]
            opened = self._crypto.open(secret, state["seal_binding"], (place, own), part)
            shares[place * m.PLAIN : (place + 1) * m.PLAIN] = opened
        packing = Packing(terms.sections, nodes)
        words = packing.words(values)
        keys = [roster.peers[place].mask_key for place in others]
        secrets = self._crypto.pair_secrets(state["mask_seed"], keys)
        self._crypto.add_mask(words, state["self_seed"], m.SELF, bound)
        pairs = dict(zip(others, secrets, strict=True))
        m.add_pair_masks(self._crypto, words, own, pairs, m.PAIR, bound)
        self._set(
            self._kept()
            | {"stage": MASKED, "last": terms.round, "shares": bytes(shares), "own": own}
            | {"present": sealed[:size], "nodes": nodes, "least": state["least"]}
        )
        return packing.to_bytes(words)

    def unmask(self, alive: bytes) -> bytes:
        """End the round: return a share of one secret of each node, 17 bytes, in roster order.

        ``alive``: the bitmap of the nodes whose masked updates are in the sum. Of these it is the
        share of the self mask's seed, of the dropped that of the mask key's, and of nodes that had
        not shared it is zeros. All secrets of the round are deleted.
        """
        self._expect(MASKED, "unmask")
        state = self._state
        present = from_bitmap(state["present"], state["nodes"])
        in_sum = set(self._allowed(alive, present, state["nodes"]))
        answer = bytearray(SHARE * state["nodes"])
        for place in present:
            start = place * m.PLAIN + (0 if place in in_sum else SHARE)
            answer[place * SHARE : (place + 1) * SHARE] = state["shares"][start : start + SHARE]
        self._set(self._kept())
        return bytes(answer)

    def masked_bare(
        self,
        terms: Terms,
        roster: Roster,
        values: Sequence[NDArray[Any]],
        least: int = 2,
        own_hash: bytes = b"",
    ) -> bytes:
        """Return this node's masked update in mode `bare`; the arguments are as above."""
        self._expect_run()
        own = self._place(terms, roster, least, b"")
        bound = sha256(binding(terms, roster) + own_hash).digest()
        packing = Packing(terms.sections, len(roster))
        words = packing.words(values)
        pairs = {
            place: self._run_secret(peer.run_key)
            for place, peer in enumerate(roster.peers)
            if place != own
        }
        m.add_pair_masks(self._crypto, words, own, pairs, m.BARE, bound)
        self._set(self._kept() | {"last": terms.round})
        return packing.to_bytes(words)

    def _place(self, terms: Terms, roster: Roster, least: int, mask_key: bytes) -> int:
        """Return this node's place in the roster of a new round that it may take part in."""
        if terms.run != self._state["run"] or terms.round <= self._state["last"]:
            raise SecureError(f"round {terms.round} is over for this node, or of another run")
        if len(roster) < least:
            raise SecureError(f"this node's owner asks for {least} nodes, not {len(roster)}")
        key = self._crypto.public_key(self._state["run_seed"])
        places = [
            i for i, p in enumerate(roster.peers) if (p.run_key, p.mask_key) == (key, mask_key)
        ]
        if not places:
            raise SecureError("this node's key is missing or changed in the roster")
        return places[0]

    def _allowed(self, bitmap: bytes, among: Sequence[int], nodes: int) -> list[int]:
        """Return the places in a bitmap if this node may take part in the sum of these nodes."""
        found, state = from_bitmap(bitmap, nodes), self._state
        if state["own"] not in found or not set(found) <= set(among):
            raise SecureError("the nodes to be summed lack this node, or have some that dropped")
        due = max(threshold_of(nodes), state["least"])
        if len(found) < due:
            raise SecureError(f"{len(found)} of {nodes} nodes are left, and {due} are needed")
        return found

    def _run_secret(self, key: bytes) -> bytes:
        return self._crypto.run_secret(self._state["run_seed"], key)

    def _expect_run(self) -> None:
        if "run_seed" not in self._state:
            raise SecureError("this node has no key of a run yet")

    def _expect(self, stage: int, message: str) -> None:
        if self._state.get("stage", 0) != stage:
            raise SecureError(f"a message `{message}` came that is not due: it is late or repeated")

    def _kept(self) -> dict[str, Any]:
        return {name: self._state[name] for name in RUN_STATE}

    def _set(self, state: dict[str, Any]) -> None:
        self._state.clear()
        self._state.update(state)
