"""What the server knows of each node: the version that it has, and what of its is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flwr.app import ArrayRecord

from ..layout import Layout
from ..payload import MAX_SIZE, Update, decode_update
from ..stages import Indices, PayloadError
from .form import Model


class Parcel(NamedTuple):
    """What a message carries of the model."""

    arrays: ArrayRecord  # of payloads
    note: Mapping[str, Any]  # fields of `ToNode`: version, base, rates, checksum
    size: int  # bytes of all payloads
    received: Model | None = None  # what the node then has, where the way has worked it out


class Way(Protocol):
    """How a node is brought to the newest version: by differences, or by the steps that it lacks.

    `skips`: a node leaves out what it has already, so that it can be sent the same again before
    anybody knows whether it has read it.
    """

    skips: bool

    def knows(self, version: int) -> bool:
        """Return whether a parcel can build on this version."""

    def parcel(self, base: int | None) -> Parcel:
        """Return what nodes of version `base` get (None: of none); one object for all of them."""


@dataclass
class LedgerState:
    """By node: the version it confirmed last, and the one that it should confirm."""

    has: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)


class Ledger:
    """What nodes have said that they have; a node of which nobody knows gets the model whole."""

    def __init__(self, way: Way, state: LedgerState | None = None) -> None:
        self.way = way
        self._state = LedgerState() if state is None else state

    def base_of(self, node: int) -> int | None:
        """Return the version on which a message to the node can build; None: on none."""
        base = self._state.has.get(node)
        return base if base is not None and self.way.knows(base) else None

    def send(self, node: int, parcel: Parcel) -> None:
        """Note what goes to a node."""
        version = parcel.note.get("version")
        if not self.way.skips:
            self._state.has.pop(node, None)  # until it answers nobody knows which it has
        if version is not None:
            self._state.sent[node] = version

    def confirm(self, node: int, version: int | None) -> None:
        """Note which version a node says it has, if it is the one it was sent."""
        sent = self._state.sent.pop(node, None)
        if sent is not None and version == sent:
            self._state.has[node] = sent

    def lose(self, node: int) -> None:
        """Note that nobody knows what a node has: it gets the model whole next."""
        self._state.has.pop(node, None)
        self._state.sent.pop(node, None)

    @property
    def held(self) -> set[int]:
        """The versions that nodes have, or may have soon."""
        return {*self._state.has.values(), *self._state.sent.values()}


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
