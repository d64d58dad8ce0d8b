"""What nodes send: which updates were applied, so that each is applied once and none is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..layout import Layout
from ..payload import MAX_SIZE, Update, decode_update
from ..stages import Indices, PayloadError


class Pending(NamedTuple):
    """An update that was decoded, and is not known to be applied."""

    sequence: int
    indices: Indices | None  # of a method that may repeat them


@dataclass
class ReceiptsState:
    """By node: the number of its last applied answer, that answer's indices, what is pending."""

    applied: dict[int, int] = field(default_factory=dict)
    indices: dict[int, Indices] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)


class Receipts:
    """The server's end of the sequence numbers that nodes with a memory put into their answers.

    The next message to a node says which of its answers was applied last; a node puts back what
    was not. Remembered for each such node: that number, and the indices of its last applied update
    if its method may repeat them.
    """

    def __init__(self, state: ReceiptsState | None = None) -> None:
        self._state = ReceiptsState() if state is None else state

    def last_applied(self, node: int) -> int:
        """Return the number of a node's last answer that is in the model; 0: none is."""
        return self._state.applied.get(node, 0)

    @property
    def pending(self) -> list[int]:
        """The nodes whose update was decoded, and is not known to be applied."""
        return list(self._state.pending)

    def decode(
        self,
        node: int,
        payload: bytes,
        sequence: int,
        layout: Layout | None,
        max_size: int = MAX_SIZE,
    ) -> Update:
        """Decode a node's update; whether it is applied is for `applied` to say.

        Raises PayloadError for one that was applied before, repeats unknown indices, or is broken.
        """
        if sequence and sequence <= self._state.applied.get(node, 0):
            raise PayloadError(f"its update {sequence} was applied already")
        self._state.pending.pop(node, None)
        update = decode_update(
            payload, layout, before=self._state.indices.get(node), max_size=max_size
        )
        if sequence:
            repeats = update.sparsifier.repeats
            self._state.pending[node] = Pending(sequence, update.selected if repeats else None)
        return update

    def forget(self, node: int) -> None:
        """Note that the update decoded from a node is of no use."""
        self._state.pending.pop(node, None)

    def applied(self, nodes: Iterable[int]) -> None:
        """Note that the updates decoded from these nodes, and no others, are in the model now."""
        for node in nodes:
            if node in self._state.pending:
                self._state.applied[node], indices = self._state.pending[node]
                if indices is not None:
                    self._state.indices[node] = indices
        self._state.pending.clear()
