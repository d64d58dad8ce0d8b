"""What nodes send: which updates were applied, so that each is applied once and none is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ..layout import Layout
from ..payload import Update, decode_update
from ..stages import Indices, PayloadError
from .state import Note


class Uplink:
    """The server's end of the sequence numbers that nodes with a memory put into their replies.

    The next message to a node says which of its replies was applied last; a node puts back what
    was not. Remembered for each such node: that number, and the indices of its last applied update
    if its method may repeat them.
    """

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        self._indices: dict[int, Indices] = {}
        self._pending: dict[int, tuple[int, Update]] = {}

    def note_for(self, node: int) -> Note:
        """Return what the next message must tell a node; nothing for one without a memory."""
        return {"applied": self._applied[node]} if node in self._applied else {}

    def last_applied(self, node: int) -> int:
        """Return the number of the node's answer that was applied last; 0 if none, or no matter."""
        return self._applied.get(node, 0)

    def decode(self, node: int, payload: bytes, note: Note, layout: Layout) -> Update:
        """Decode a node's update; whether it is applied is for `applied` to say.

        Raises PayloadError for one that was applied before, repeats unknown indices, or is broken.
        """
        sequence = cast(int, note.get("sequence", 0))
        if sequence and sequence <= self._applied.get(node, 0):
            raise PayloadError(f"its update {sequence} was applied already")
        self._pending.pop(node, None)
        update = decode_update(payload, layout, before=self._indices.get(node))
        if sequence:
            self._pending[node] = sequence, update
        return update

    def applied(self, nodes: Iterable[int]) -> None:
        """Note that the updates decoded from these nodes, and no others, are in the model now."""
        for node in nodes:
            if node in self._pending:
                self._applied[node], update = self._pending[node]
                if update.sparsifier.repeats and update.selected is not None:
                    self._indices[node] = update.selected
        self._pending.clear()
