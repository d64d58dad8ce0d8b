"""Which nodes of a secure sum keep their residuals, so that no sum tells that of one node."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from ...secure.terms import threshold_of

_NOTE = struct.Struct("<16sHB")  # `edgewire.compression.secure.terms.NOTE` bytes


class History(NamedTuple):
    """Of which rounds a node's residual is, which the node tells all others as its note.

    `chain`: a hash of these rounds and of those of others before, 16 bytes. `rounds`: how many
    there are; 0: the node has no residual. `least`: the fewest nodes of a sum, as the node's owner
    says.
    """

    chain: bytes
    rounds: int
    least: int

    @classmethod
    def of(cls, note: bytes) -> History:
        """Return what a note says."""
        return cls(*_NOTE.unpack(note))

    def note(self) -> bytes:
        """Return the note, 19 bytes."""
        return _NOTE.pack(*self)

    def after(self, what: bytes, rounds: int = 1) -> History:
        """Return it after so many more rounds; `what` is all that may differ between nodes in them.

        The residual ends with its 65,536th round.
        """
        chain = sha256(self.chain + what).digest()[: len(self.chain)]
        return self._replace(chain=chain, rounds=(self.rounds + rounds) % (1 << 16))


NONE = History(bytes(16), 0, 0)


def agreed(notes: Sequence[bytes], own: bytes) -> History:
    """Return a node's history in a round with these notes, in which some residuals are deleted.

    A sum could tell a residual of which no other node has the same rounds. A server that tells
    nodes different lists of the dropped leaves out of a sum at most the nodes that are subtracted
    here. So a node keeps its residual if enough nodes, itself included, keep theirs and have the
    same rounds in it, and perhaps earlier ones. A node that deletes its residual takes over the
    chain of those that keep theirs: its next residual is of rounds that these have, too. All nodes
    of a round see the same notes, so all find the same.

    `own`: the node's note. Up to two of the nodes may be on the server's side.
    """
    nodes, due = len(notes), threshold_of(len(notes))
    histories = Counter(map(History.of, notes))
    bad = min(2, 2 * due - nodes - 1)  # with one more, shares of both secrets can be had
    # Each node lets at most so many drop out. Of each that dropped, `due` nodes say so.
    dropped = max(nodes - max(due, min(each.least for each in histories)), 0)
    left_out = (nodes - bad) * dropped // (due - bad)
    kept = {each: count for each, count in histories.items() if each.rounds}

    def alike(one: History) -> int:
        return sum(
            count
            for each, count in kept.items()
            if each.chain == one.chain and each.rounds >= one.rounds
        )

    while few := [each for each in kept if alike(each) < max(each.least, 2 + bad) + left_out]:
        kept = {each: count for each, count in kept.items() if each not in few}
    mine = History.of(own)
    return mine if mine in kept else mine._replace(chain=max(kept, default=NONE).chain, rounds=0)
