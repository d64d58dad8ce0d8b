"""What all nodes of a round must agree on, and one hash of it that is in every derived key."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from ..base import PayloadError

KEY, HASH, RUN = 32, 32, 16  # bytes of a public key, of a SHA-256, of a run's nonce
LIMIT = 1 << 64  # node ids, counts and rounds are below it
MOST_NODES = 1 << 16


class SecureError(PayloadError):
    """Raised for a message that would break the secure sum; the message holds no secret."""


class Peer(NamedTuple):
    """A node of a round: its id and its X25519 public keys of 32 bytes.

    ``mask_key``: the key of the round; empty in mode `bare`, which needs none.
    """

    node: int
    run_key: bytes
    mask_key: bytes = b""


@dataclass(frozen=True)
class Terms:
    """What a round adds up. A mode has no field: the threshold of `bare` is 0.

    ``run``: the 16 random bytes of the server's session. ``round``: its number. ``threshold``: how
    many nodes must answer to the end. ``sections``: (count, most) for each section of the vector,
    whose values are integers from -most to most. ``clip``: the norm or the scale that the integers
    stand for. ``model``, ``support``: SHA-256 of the model and of the entries or the basis sent.
    """

    run: bytes
    round: int
    threshold: int
    sections: tuple[tuple[int, int], ...]
    clip: float
    model: bytes
    support: bytes

    def __post_init__(self) -> None:
        expect_bytes("the run's nonce", self.run, RUN)
        expect_bytes("the model's hash", self.model, HASH)
        expect_bytes("the support's hash", self.support, HASH)
        numbers = [self.round, self.threshold, *(n for each in self.sections for n in each)]
        if not all(is_count(number) for number in numbers):
            raise SecureError("the terms hold a number that is no integer from 0 to 2^64 - 1")
        if any(len(each) != 2 for each in self.sections):
            raise SecureError("a section of the terms is (count, most)")
        if not (isinstance(self.clip, int | float) and 0 <= self.clip < float("inf")):
            raise SecureError("the clip of the terms is not a finite number of at least 0")

    def to_bytes(self) -> bytes:
        """Return an encoding that no other terms have."""
        head = struct.pack("<16sQQd", self.run, self.round, self.threshold, self.clip)
        numbers = [number for each in self.sections for number in each]
        return head + self.model + self.support + struct.pack(f"<{len(numbers)}Q", *numbers)


@dataclass(frozen=True)
class Roster:
    """The nodes of a round, in the order in which all messages name them.

    Raises `SecureError` for fewer than two nodes, for two nodes with one id or key, and if some
    have mask keys and others not.
    """

    peers: tuple[Peer, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.peers) < MOST_NODES:
            raise SecureError(f"a secure sum needs two nodes or more, not {len(self.peers)}")
        for peer in self.peers:
            if not is_count(peer.node):
                raise SecureError("a node's id is no integer from 0 to 2^64 - 1")
            expect_bytes(f"the run key of node {peer.node}", peer.run_key, KEY)
            expect_bytes(f"the mask key of node {peer.node}", peer.mask_key, KEY * self.has_masks)
        expect_different("id", (peer.node for peer in self.peers))
        keys = [peer.run_key for peer in self.peers]
        expect_different("key", keys + [p.mask_key for p in self.peers] * self.has_masks)

    def __len__(self) -> int:
        return len(self.peers)

    @property
    def has_masks(self) -> bool:
        """Whether the nodes have mask keys: in mode `sum`, not in mode `bare`."""
        return bool(self.peers[0].mask_key)

    def to_bytes(self) -> bytes:
        """Return 72 bytes per node with mask keys, and 40 without, after one byte that says it."""
        rows = (p.node.to_bytes(8, "little") + p.run_key + p.mask_key for p in self.peers)
        return bytes([self.has_masks]) + b"".join(rows)

    @classmethod
    def from_bytes(cls, data: bytes) -> Roster:
        """Return the roster that `to_bytes` encoded; raises `SecureError` for other bytes."""
        size = 8 + KEY + KEY * (data[:1] == b"\1")
        if data[:1] not in (b"\0", b"\1") or len(data) % size != 1:
            raise SecureError("these bytes are no roster")
        rows = [data[at : at + size] for at in range(1, len(data), size)]
        return cls(tuple(Peer(int.from_bytes(r[:8], "little"), r[8:40], r[40:]) for r in rows))


def threshold_of(nodes: int) -> int:
    """Return how many of ``nodes`` must answer to the end in mode `sum`: floor(2n/3) + 1.

    With this threshold a server that shows nodes different lists of the dropped learns nothing
    more, as long as fewer than 2t - n nodes collude with it. So no consistency round is needed
    (Bonawitz et al. 2017, Theorem 6.5, has the bound).
    """
    return 2 * nodes // 3 + 1


def binding(terms: Terms, roster: Roster) -> bytes:
    """Return the SHA-256 of the terms and the roster, which is in every derived key.

    Raises `SecureError` if the threshold is not the one of this number of nodes.
    """
    due = threshold_of(len(roster)) if roster.has_masks else 0
    if terms.threshold != due:
        raise SecureError(
            f"the threshold of {len(roster)} nodes is {due}, and the terms say {terms.threshold}"
        )
    said = terms.to_bytes()
    return sha256(len(said).to_bytes(8, "little") + said + roster.to_bytes()).digest()


def to_bitmap(places: Iterable[int], nodes: int) -> bytes:
    """Return ceil(nodes / 8) bytes; bit i of the little-endian number is set for place i."""
    return sum(1 << place for place in set(places)).to_bytes((nodes + 7) // 8, "little")


def from_bitmap(data: bytes, nodes: int) -> list[int]:
    """Return the places in a bitmap, in order; raises `SecureError` for other bytes."""
    expect_bytes("the bitmap of nodes", data, (nodes + 7) // 8)
    bits = int.from_bytes(data, "little")
    if bits >> nodes:
        raise SecureError(f"the bitmap names nodes beyond the {nodes} of the roster")
    return [place for place in range(nodes) if bits >> place & 1]


def is_count(number: Any) -> bool:
    """Return whether ``number`` is an integer from 0 to 2^64 - 1."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < LIMIT


def expect_bytes(name: str, data: Any, size: int) -> None:
    """Raise `SecureError` unless ``data`` is bytes of this length."""
    if not isinstance(data, bytes) or len(data) != size:
        found = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise SecureError(f"{name} must have {size} bytes, not {found}")


def expect_different(name: str, values: Iterable[object]) -> None:
    """Raise `SecureError` if two values are equal."""
    found = list(values)
    if len(set(found)) < len(found):
        raise SecureError(f"two nodes of the roster have one {name}")
