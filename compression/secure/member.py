"""A node's side of the secure sum."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from hashlib import sha256
from os import urandom
from typing import Any

from numpy.typing import NDArray

from .masks import BARE, PAIR, SEALED, SELF, SHARES, Masks
from .packing import Packing
from .shamir import SECRET, SHARE
from .terms import (
    KEY,
    NO_KEY,
    RUN,
    Roster,
    SecureError,
    Terms,
    binding,
    expect_bytes,
    from_bitmap,
    threshold_of,
)

KEYED, SHARED, OPENED, MASKED = 1, 2, 3, 4  # the stages: what the node has done in this round


class Member:
    """A node; each method answers one message of the server.

    ``state``: bytes and ints by name, a dict or a ConfigRecord, empty at first. It holds secrets.
    The caller stores it before it sends an answer, and shows it to no one. ``masks``: False
    simulates without cryptography, and protects nothing. ``config``: a hash of what must be the
    same at all nodes and need not be known to the server, such as the run's configuration.

    Mode `sum`: `run_key` once, then in each round `mask_key`, `share`, `opened`, `masked`,
    `unmask`. Mode `bare`: `run_key` once, then `masked_bare` in each round. Methods raise
    `SecureError` for a message that they refuse, and PayloadError for values that do not fit. The
    state is then as it was.
    """

    def __init__(
        self, state: MutableMapping[str, Any], masks: bool = True, config: bytes = b""
    ) -> None:
        self._state, self._masks, self._config = state, Masks(masks), config

    def run_key(self, run: bytes) -> bytes:
        """Return this node's public key, 32 bytes, for the server's session of nonce ``run``.

        A new session gets a new key and ends the one before. Its rounds must be later ones, too:
        two sums of one round, with and without this node, would tell its update.
        """
        expect_bytes("the run's nonce", run, RUN)
        if self._state.get("run") != run:
            self._keep(run=run, run_seed=urandom(32), last=self._state.get("last", -1))
        return self._masks.public_key(self._state["run_seed"])

    def mask_key(self) -> bytes:
        """Begin a round and give up an open one; return a new public key, 32 bytes."""
        self._expect(None)
        self._keep(stage=KEYED, mask_seed=urandom(SECRET))
        return self._masks.public_key(self._state["mask_seed"])

    def share(self, terms: Terms, roster: Roster, least: int = 2) -> bytes:
        """Return sealed shares for the other nodes, 50 bytes each, in the roster's order.

        ``least``: of how many nodes the owner of this one allows a sum.
        """
        self._expect(KEYED)
        seed, self_seed = self._state["mask_seed"], urandom(SECRET)
        own, bound = self._entered(terms, roster, least, self._masks.public_key(seed))
        shares = self._masks.split([self_seed, seed], roster.threshold, len(roster))
        keys = [peer.mask_key for i, peer in enumerate(roster.peers) if i != own]
        pairs = b"".join(self._masks.secrets(seed, keys))
        secrets, key = self._seal_secrets(roster, own, pairs), self._with_config(bound)
        sealed = [self._masks.seal(secrets[i], key, (own, i), shares[i]) for i in secrets]
        said = {"roster": roster.to_bytes(), "binding": bound, "least": least, "own": own}
        own_secrets = {"self_seed": self_seed, "shares": shares[own], "pairs": pairs}
        self._state.update(said, **own_secrets, stage=SHARED)
        return b"".join(sealed)

    def opened(self, sealed: bytes) -> None:
        """Take the other nodes' shares, 50 bytes each, in the roster's order.

        All nodes of the roster must have shared. If nodes could be told of different ones, the
        lists of the dropped that `unmask` allows would be enough to open one update.
        """
        self._expect(SHARED)
        state, roster = self._state, Roster.from_bytes(self._state["roster"])
        own, secrets = state["own"], self._seal_secrets(roster, state["own"], state["pairs"])
        expect_bytes("the sealed shares", sealed, SEALED * len(secrets))
        shares = [state["shares"]] * len(roster)
        key = self._with_config(state["binding"])
        for i, at in zip(secrets, range(0, len(sealed), SEALED), strict=True):
            one = sealed[at : at + SEALED]
            shares[i] = self._masks.open(secrets[i], key, (i, own), one)
        self._state.update(stage=OPENED, shares=b"".join(shares))

    def masked(self, terms: Terms, values: Sequence[NDArray[Any]]) -> bytes:
        """Return this node's masked update.

        ``terms``: as this node sees them now, with the hash of the model that it got. ``values``:
        integers (count,) for each section.
        """
        self._expect(OPENED)
        state, roster = self._state, Roster.from_bytes(self._state["roster"])
        own, bound = state["own"], state["binding"]
        if binding(terms, roster) != bound:
            raise SecureError("the model or the terms differ from those that this node agreed to")
        packing = Packing(terms.sections, len(roster))
        words = packing.words(values)
        self._masks.add(words, own, {own: state["self_seed"]}, SELF, bound)
        self._masks.add(words, own, _by_place(state["pairs"], own, len(roster)), PAIR, bound)
        self._keep("own", "least", "shares", stage=MASKED, last=terms.round, nodes=len(roster))
        return packing.to_bytes(words)

    def unmask(self, alive: bytes, number: int) -> bytes:
        """End the round: return 17 bytes for each node of the roster; delete the round's secrets.

        ``alive``: the bitmap of the nodes in the sum. ``number``: the round's. The bytes are a
        share of the self mask's seed for these, and of the mask key's seed for the others.
        """
        self._expect(MASKED)
        state, nodes = self._state, self._state["nodes"]
        if number != state["last"]:
            raise SecureError(f"round {number} is not the one that this node sent an update in")
        alive_now = set(self._allowed(alive, nodes))
        starts = [i * SHARES + (0 if i in alive_now else SHARE) for i in range(nodes)]
        answer = b"".join(state["shares"][start : start + SHARE] for start in starts)
        self._keep()
        return answer

    def masked_bare(
        self, terms: Terms, roster: Roster, values: Sequence[NDArray[Any]], least: int = 2
    ) -> bytes:
        """Return this node's masked update in mode `bare`; the arguments are as above."""
        self._expect(None)
        own, bound = self._entered(terms, roster, least, NO_KEY)
        packing = Packing(terms.sections, len(roster))
        words = packing.words(values)
        key = self._with_config(bound)
        self._masks.add(words, own, self._run_secrets(roster, own), BARE, key)
        self._keep(last=terms.round)
        return packing.to_bytes(words)

    def _entered(
        self, terms: Terms, roster: Roster, least: int, mask_key: bytes
    ) -> tuple[int, bytes]:
        """Return this node's place in a new round's roster, and the binding; or refuse them."""
        if terms.run != self._state["run"] or terms.round <= self._state["last"]:
            raise SecureError(f"round {terms.round} is over for this node, or of another run")
        if len(roster) < least:
            raise SecureError(f"{len(roster)} nodes take part, and the owner asks for {least}")
        shown = self._masks.public_key(self._state["run_seed"]), mask_key
        places = [i for i, peer in enumerate(roster.peers) if peer[1:] == shown]
        if not places:
            raise SecureError("this node's key is missing in the roster")
        return places[0], binding(terms, roster)

    def _allowed(self, bitmap: bytes, nodes: int) -> list[int]:
        """Return the places in a bitmap, or refuse a sum of these nodes."""
        found, due = from_bitmap(bitmap, nodes), max(threshold_of(nodes), self._state["least"])
        if self._state["own"] not in found:
            raise SecureError("the nodes to sum lack this node")
        if len(found) < due:
            raise SecureError(f"{len(found)} of {nodes} nodes are left, and {due} are needed")
        return found

    def _with_config(self, bound: bytes) -> bytes:
        """Return the binding with the hash that only the nodes know."""
        return sha256(bound + self._config).digest()

    def _seal_secrets(self, roster: Roster, own: int, pairs: bytes) -> dict[int, bytes]:
        """Return the secrets for sealed shares, by place: of the mask keys and of the run's.

        The server may learn those of the mask keys of nodes that drop. A node deletes them in each
        round, so who takes it over later opens none of the shares that it has sealed.
        """
        run = self._run_secrets(roster, own)
        return {i: pair + run[i] for i, pair in _by_place(pairs, own, len(roster)).items()}

    def _run_secrets(self, roster: Roster, own: int) -> dict[int, bytes]:
        """Return the secrets with all other nodes, by place."""
        keys = {i: peer.run_key for i, peer in enumerate(roster.peers) if i != own}
        secrets = self._masks.secrets(self._state["run_seed"], [*keys.values()], keep=True)
        return dict(zip(keys, secrets, strict=True))

    def _expect(self, stage: int | None) -> None:
        """Refuse a message without a run key, or in another stage of the round."""
        if "run" not in self._state:
            raise SecureError("this node has no key for this run: ask for it first")
        if stage is not None and self._state.get("stage") != stage:
            raise SecureError("this message is late, early or repeated in the round")

    def _keep(self, *names: str, **others: Any) -> None:
        """Keep of the state these values and those of the run, and set others."""
        for name in {*self._state} - {*names, "run", "run_seed", "last"}:
            del self._state[name]
        self._state.update(others)


def _by_place(pairs: bytes, own: int, nodes: int) -> dict[int, bytes]:
    """Return the secrets of a node's mask key with those of the others, which stand in a row."""
    others = (i for i in range(nodes) if i != own)
    return {i: pairs[at * KEY : (at + 1) * KEY] for at, i in enumerate(others)}
