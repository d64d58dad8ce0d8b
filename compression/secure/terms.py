"""What all nodes of a round must agree on, and the hash of it that is in every derived key."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from ..base import PayloadError

KEY, HASH, RUN = 32, 32, 16  # bytes of a public key, of a SHA-256, of a run's nonce
NO_KEY = bytes(KEY)
ROW = "<Q32s32s"  # a node of a roster
MOST_NODES = 200  # each node exchanges shares with each other: with more, that takes too long


class SecureError(PayloadError):
    """Raised for a message that would break the secure sum; its text holds no secret."""


class Peer(NamedTuple):
    """A node's id and its X25519 public keys; in mode `sum` it has a new mask key per round."""

    node: int
    run_key: bytes
    mask_key: bytes = NO_KEY


@dataclass(frozen=True)
class Terms:
    """What a round adds up; raises `SecureError` for values of another type or size.

    ``run``: 16 random bytes of the server's session. ``sections``: (count, most) each: so many
    integers from -most to most. ``given``: SHA-256 of all from which nodes make their integers,
    such as the model.
    """

    run: bytes
    round: int
    sections: tuple[tuple[int, int], ...]
    given: bytes

    def __post_init__(self) -> None:
        expect_bytes("run in the terms", self.run, RUN)
        expect_bytes("given in the terms", self.given, HASH)
        self.to_bytes()

    def to_bytes(self) -> bytes:
        """Return an encoding that differs for all other terms."""
        sections = (_packed("<QQ", *section) for section in self.sections)
        return self.run + self.given + _packed("<q", self.round) + b"".join(sections)


@dataclass(frozen=True)
class Roster:
    """A round's nodes, in the order in which all messages name them; a place is an index in it.

    Raises `SecureError` for fewer than two nodes or too many, for two nodes with one id or one key,
    and if some nodes have mask keys and others have none.
    """

    peers: tuple[Peer, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self) <= MOST_NODES:
            raise SecureError(f"a secure sum takes 2 to {MOST_NODES} nodes, not {len(self)}")
        for peer in self.peers:
            expect_bytes(f"the run key of node {peer.node}", peer.run_key, KEY)
            expect_bytes(f"the mask key of node {peer.node}", peer.mask_key, KEY)
        masks = [peer.mask_key for peer in self.peers if peer.mask_key != NO_KEY]
        keys = {peer.run_key for peer in self.peers} | {*masks}
        ids = {peer.node for peer in self.peers}
        if not len(ids) == len(keys) - len(masks) == len(self) or len(masks) % len(self):
            raise SecureError("two nodes have one id or one key, or some have no mask key")
        self.to_bytes()

    def __len__(self) -> int:
        return len(self.peers)

    @property
    def threshold(self) -> int:
        """How many nodes must answer to the end (`threshold_of`); 0 in mode `bare`."""
        return threshold_of(len(self)) if self.peers[0].mask_key != NO_KEY else 0

    def to_bytes(self) -> bytes:
        """Return 72 bytes per node."""
        return b"".join(_packed(ROW, *peer) for peer in self.peers)

    @classmethod
    def from_bytes(cls, data: bytes) -> Roster:
        """Return the roster of `to_bytes`; raises `SecureError` for other bytes."""
        if len(data) % struct.calcsize(ROW):
            raise SecureError("these bytes are no roster")
        return cls(tuple(map(Peer._make, struct.iter_unpack(ROW, data))))


def threshold_of(nodes: int) -> int:
    """Return how many of ``nodes`` must answer to the end in mode `sum`: floor(2n/3) + 1.

    A node shows a share of one secret of each peer. So a server that tells nodes different lists of
    the dropped needs 2t answers to get both, and fails while fewer than 2t - n nodes collude.
    """
    return 2 * nodes // 3 + 1


def binding(terms: Terms, roster: Roster) -> bytes:
    """Return the SHA-256 of terms and roster."""
    said = terms.to_bytes()
    head = b"edgewire secure sum 1" + len(said).to_bytes(8, "little")
    return sha256(head + said + roster.to_bytes()).digest()


def to_bitmap(places: Iterable[int], nodes: int) -> bytes:
    """Return ceil(nodes / 8) bytes, a little-endian number with bit i set for place i."""
    return sum(1 << place for place in places).to_bytes((nodes + 7) // 8, "little")


def from_bitmap(data: bytes, nodes: int) -> list[int]:
    """Return the places in a bitmap, in order; raises `SecureError` for other bytes."""
    expect_bytes("a bitmap of nodes", data, (nodes + 7) // 8)
    bits = int.from_bytes(data, "little")
    if bits >> nodes:
        raise SecureError(f"a bitmap names more than the {nodes} nodes of the roster")
    return [place for place in range(nodes) if bits >> place & 1]


def _packed(form: str, *values: Any) -> bytes:
    try:
        return struct.pack(form, *values)
    except (struct.error, TypeError):
        raise SecureError("a node, a round or terms have a number that is out of range") from None


def expect_bytes(name: str, data: Any, size: int) -> None:
    """Raise `SecureError` unless ``data`` is bytes of this length."""
    if not isinstance(data, bytes) or len(data) != size:
        found = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise SecureError(f"{name}: {size} bytes are taken, not {found}")
