"""Tracks by sequence number which of the nodes' updates are applied to the server's model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base import Indices, PayloadError
from ..codec import Codec
from ..decoder import Update, decode_update
from ..layout import Layout


class Pending(NamedTuple):
    """A decoded update that may or may not be applied."""

    sequence: int
    indices: Indices | None  # None if the method never repeats indices


@dataclass
class AckTrackerState:
    """By node: the number of its last applied reply, that reply's indices, its pending update.

    `forgot`: some nodes were forgotten, and they may come back.
    """

    applied: dict[int, int] = field(default_factory=dict)
    indices: dict[int, Indices] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    forgot: bool = False


OTHER_METHOD = "its payload is not of the method that this run's nodes have"
INDEX_BUDGET = 1 << 30  # bytes of stored indices, of all nodes together


class AckTracker:
    """Tracks, at the server, the sequence numbers that nodes with a residual put in their replies.

    The next message to a node says which of its replies was applied last. If a later reply was not
    applied, the node adds it back to its residual. For each such node the tracker stores that
    number, and the indices of its last applied update if its method may repeat them. If a forgotten
    node comes back, its first message does not say what was applied, and the node adds nothing
    back.
    """

    def __init__(self, state: AckTrackerState | None = None, uplink: Codec | None = None) -> None:
        self._state = AckTrackerState() if state is None else state
        self._bytes = sum(each.nbytes for each in self._state.indices.values())
        self._uplink = uplink  # the nodes' codec; None: unknown

    def last_applied(self, node: int) -> int:
        """Return the number of a node's last reply that is in the model; 0 if none is."""
        return self._state.applied.get(node, 0)

    def unknown(self, node: int) -> bool:
        """Return whether it is unknown which of a node's replies were applied.

        After a True answer the node counts as known, with no reply applied.
        """
        if not self._state.forgot or node in self._state.applied:
            return False
        self._state.applied[node] = 0
        return True

    @property
    def pending(self) -> list[int]:
        """The nodes with a decoded update that may or may not be applied."""
        return list(self._state.pending)

    def decode(
        self,
        node: int,
        payload: bytes,
        sequence: int,
        layout: Layout,
        own: tuple[int, ...] = (),
    ) -> Update:
        """Decode a node's update; it stays pending until `applied`, `settle` or `drop`.

        `layout`, `own`: of the whole model, as in `decode_update`. Raises PayloadError for an
        update that was applied before, that another method made, that repeats unknown indices, or
        that is broken.
        """
        uplink = self._uplink
        if uplink is not None and not uplink.made(payload):
            raise PayloadError(OTHER_METHOD)
        if sequence and sequence <= self._state.applied.get(node, 0):
            raise PayloadError(f"its update {sequence} was applied already")
        self._state.pending.pop(node, None)
        before = self._state.indices.get(node)
        exact = None if uplink is None else uplink.exact_tensors(layout.without(own))
        update = decode_update(payload, layout, own=own, exact=exact, before=before)
        if sequence:
            repeats = (update if uplink is None else uplink).sparsifier.repeats
            self._state.pending[node] = Pending(sequence, update.selected if repeats else None)
        return update

    def settle(self, node: int, *, applied: bool) -> None:
        """Note whether the pending update of a node was applied."""
        pending = self._state.pending.pop(node, None)
        if pending is not None and applied:
            self._state.applied[node], indices = pending
            if indices is not None:
                self._keep(node, indices)

    def _keep(self, node: int, indices: Indices) -> None:
        """Store a node's indices; beyond the budget, drop those of the least recent nodes."""
        kept = self._state.indices
        if (old := kept.pop(node, None)) is not None:
            self._bytes -= old.nbytes
        kept[node] = indices
        self._bytes += indices.nbytes
        while self._bytes > INDEX_BUDGET and len(kept) > 1:
            self._bytes -= kept.pop(next(iter(kept))).nbytes

    def drop(self, node: int) -> None:
        """Note that the pending update of a node cannot be used."""
        self._state.pending.pop(node, None)

    def forget(self, nodes: Iterable[int]) -> None:
        """Forget nodes that are gone."""
        state = self._state
        for node in nodes:
            state.applied.pop(node, None)
            state.pending.pop(node, None)
            if (indices := state.indices.pop(node, None)) is not None:
                self._bytes -= indices.nbytes
            state.forgot = True

    def applied(self, nodes: Iterable[int]) -> None:
        """Note that the pending updates of these nodes, and no others, are in the model now."""
        for node in nodes:
            self.settle(node, applied=True)
        self._state.pending.clear()
