"""The server's end of the dialogue: which version each node has, what is applied, what is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from ..codec import Codec
from ..header import MAX_TENSORS
from ..layout import Layout
from ..payload import MAX_SIZE, Update, decode_update
from ..stages import Indices, PayloadError
from .arrays import filled, payload_of, records
from .form import Model
from .notes import EXAMPLES, MOST, NOTE, ToNode, ToServer, number, read, written
from .traffic import Traffic, reason_of


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
    """By node: the number of its last applied reply, that reply's indices, what is pending."""

    applied: dict[int, int] = field(default_factory=dict)
    indices: dict[int, Indices] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)


INDEX_BUDGET = 1 << 30  # bytes of indices that are kept, of all nodes


class Receipts:
    """The server's end of the sequence numbers that nodes with a memory put into their replies.

    The next message to a node says which of its replies was applied last; a node puts back what
    was not. Remembered for each such node: that number, and the indices of its last applied update
    if its method may repeat them.
    """

    def __init__(self, state: ReceiptsState | None = None, repeats: bool | None = None) -> None:
        self._state = ReceiptsState() if state is None else state
        self._bytes = sum(each.nbytes for each in self._state.indices.values())
        self._repeats = repeats  # whether the nodes' method may repeat indices; None: who knows

    def last_applied(self, node: int) -> int:
        """Return the number of a node's last reply that is in the model; 0: none is."""
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
        max_tensors: int = MAX_TENSORS,
    ) -> Update:
        """Decode a node's update; whether it is applied is for `applied` to say.

        Raises PayloadError for one that was applied before, repeats unknown indices, or is broken.
        """
        if sequence and sequence <= self._state.applied.get(node, 0):
            raise PayloadError(f"its update {sequence} was applied already")
        self._state.pending.pop(node, None)
        before = self._state.indices.get(node)
        update = decode_update(
            payload, layout, before=before, max_size=max_size, max_tensors=max_tensors
        )
        if sequence:
            repeats = update.sparsifier.repeats if self._repeats is None else self._repeats
            self._state.pending[node] = Pending(sequence, update.selected if repeats else None)
        return update

    def settle(self, node: int, *, applied: bool) -> None:
        """Note what has become of the update decoded from a node."""
        pending = self._state.pending.pop(node, None)
        if pending is not None and applied:
            self._state.applied[node], indices = pending
            if indices is not None:
                self._keep(node, indices)

    def _keep(self, node: int, indices: Indices) -> None:
        """Keep a node's indices; those of nodes not heard for longest go beyond the budget."""
        kept = self._state.indices
        if (old := kept.pop(node, None)) is not None:
            self._bytes -= old.nbytes
        kept[node] = indices
        self._bytes += indices.nbytes
        while self._bytes > INDEX_BUDGET and len(kept) > 1:
            self._bytes -= kept.pop(next(iter(kept))).nbytes

    def forget(self, node: int) -> None:
        """Note that the update decoded from a node is of no use."""
        self._state.pending.pop(node, None)

    def applied(self, nodes: Iterable[int]) -> None:
        """Note that the updates decoded from these nodes, and no others, are in the model now."""
        for node in nodes:
            self.settle(node, applied=True)
        self._state.pending.clear()


Key = tuple[int, int | None, int | None]  # a content's id, the node's version, what is applied


class Received(NamedTuple):
    """A node's update, sparse as it was sent, and what the node measured."""

    update: Update
    metrics: MetricRecord


@dataclass
class DialogueState:
    """What the server knows of its nodes."""

    ledger: LedgerState = field(default_factory=LedgerState)
    receipts: ReceiptsState = field(default_factory=ReceiptsState)


class Dialogue:
    """Brings nodes to the newest model, tells them what was applied, and reads their replies.

    `layout`: of the model, where all nodes have the same. `plain_bytes`: of the model as Flower
    sends it without compression. `uplink`: of the nodes; what repeats indices is else accepted of
    any method.
    """

    def __init__(
        self,
        way: Way,
        traffic: Traffic,
        layout: Layout | None = None,
        plain_bytes: int = 0,
        state: DialogueState | None = None,
        uplink: Codec | None = None,
    ) -> None:
        state = DialogueState() if state is None else state
        self.ledger = Ledger(way, state.ledger)
        self.receipts = Receipts(
            state.receipts, None if uplink is None else uplink.sparsifier.repeats
        )
        self.traffic = traffic
        self.layout, self.plain_bytes = layout, plain_bytes

    def messages(
        self, nodes: Iterable[int], kind: str, orders: Mapping[str, Any], note: ToNode
    ) -> list[tuple[Message, Parcel]]:
        """Return a message of type `kind` for each node, with the newest model, and its parcel.

        `orders`: what the ClientApp is told. Nodes alike share one content.
        """
        config = filled(ConfigRecord, orders)
        content = filled(RecordDict, {"arrays": None, "config": config})
        cache: dict[Key, tuple[RecordDict, Parcel]] = {}
        made = []
        for node in nodes:
            encoded, parcel = self.encoded(node, content, "arrays", note, cache)
            self.count_down(self.plain_bytes)
            made.append((Message(encoded, node, kind, group_id=str(note.number)), parcel))
        return made

    def encoded(
        self,
        node: int,
        content: RecordDict,
        name: str,
        note: ToNode,
        cache: dict[Key, tuple[RecordDict, Parcel]],
        *,
        decided: bool = True,
    ) -> tuple[RecordDict, Parcel]:
        """Return a content for a node, its record `name` a parcel, and the parcel: it is sent.

        `decided`: what has become of all that the node has sent; else it is told nothing of that.
        """
        base = self.ledger.base_of(node)
        applied = self.receipts.last_applied(node) if decided else None
        says = note._replace(applied=applied or None, undecided=None if decided else 1)
        key = id(content), base, applied
        if key not in cache:
            parcel = next((p for k, (_, p) in cache.items() if k[:2] == key[:2]), None)
            parcel = parcel or self.ledger.way.parcel(base)
            told = written(says._replace(**parcel.note))
            shared = {k: parcel.arrays if k == name else v for k, v in content.items()}
            cache[key] = filled(RecordDict, {**shared, NOTE: told}), parcel
        made = cache[key]
        self.ledger.send(node, made[1])
        self.traffic.downlink_bytes += made[1].size
        return made

    def count_down(self, plain_bytes: int) -> None:
        """Count what Flower would have sent in place of a message's payloads."""
        self.traffic.downlink_bytes_float32 += plain_bytes

    def opened(self, reply: Message, asked: int, plain_bytes: int) -> ToServer:
        """Return what a reply says beside arrays; `asked`: the number of its message.

        The bytes of its payload are counted: they have crossed the link, used or not;
        `plain_bytes`: what Flower would have sent. Raises `PayloadError` for an error, and for the
        reply to another message, sent again.
        """
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.ledger.lose(node)
            raise PayloadError(reason_of(reply))
        if (found := payload_of(reply.content)) is not None:
            self.traffic.uplink_bytes += len(found[1])
            self.traffic.uplink_bytes_float32 += plain_bytes
        note = read(reply.content, ToServer)
        if note.number != asked:
            self.ledger.lose(node)
            raise PayloadError(f"it replies to message {note.number}: {asked} was to be answered")
        self.ledger.confirm(node, note.version)
        return note

    def read(self, reply: Message, asked: int, measured: Iterable[str] = ()) -> Received:
        """Return a reply's update; whether it is applied is for `receipts.applied` to say.

        `asked`: the number of its message; `measured`: metrics that must be finite. Raises
        `PayloadError`, with the reason, for what cannot be used.
        """
        note, content = self.opened(reply, asked, self.plain_bytes), reply.content
        found, metrics = payload_of(content), next(iter(records(content, MetricRecord)), None)
        if found is None or metrics is None:
            raise PayloadError("a reply must hold a payload and a MetricRecord")
        if note.whole:
            raise PayloadError("the reply holds a model; an update is asked for")
        if not 0 < number(metrics[1], EXAMPLES) < 2 * MOST:
            raise PayloadError("its number of samples must be above 0, below 2^63")
        for name in measured:
            number(metrics[1], name)
        node, sequence = reply.metadata.src_node_id, note.sequence or 0
        return Received(self.receipts.decode(node, found[1], sequence, self.layout), metrics[1])
