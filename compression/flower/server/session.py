"""The server's end of the dialogue: which version each node has, what is applied, what is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from ...base import PayloadError
from ...codec import Codec
from ...decoder import Update
from ...layout import Layout
from ..acks import AckTracker, AckTrackerState
from ..headers import EXAMPLES, MOST, NOTE, DownlinkHeader, UplinkHeader, number, read, written
from ..message_size import Size, measured
from ..native_tensors import (
    INITIAL,
    NATIVE,
    NONE,
    OTHER_INITIAL,
    Arrays,
    Initial,
    native_payload,
    with_payload,
)
from ..records import filled, payload_of, payloads_of, records
from ..tensor_split import Model
from ..traffic import Traffic, reason_of


class ModelUpdate(NamedTuple):
    """What a message carries of the model."""

    arrays: ArrayRecord  # of payloads
    note: Mapping[str, Any]  # fields of `DownlinkHeader`: version, base, rates, checksum
    size: int  # bytes of all payloads
    received: Model | None = None  # what the node then has, where the way has worked it out


class ModelSync(Protocol):
    """How a node is brought to the newest version: by differences, or by the steps that it lacks.

    `skips`: a node leaves out what it has already, so that it can be sent the same again before
    anybody knows whether it has read it.
    """

    skips: bool

    def knows(self, version: int) -> bool:
        """Return whether a parcel can build on this version."""

    def parcel(self, base: int | None) -> ModelUpdate:
        """Return what nodes of version `base` get; one object for all of them.

        None: of no version; `UNHEARD`: nor will be known of one, as nodes do not reply.
        """


UNHEARD = -1  # in place of the version of a node that has not replied
SILENT = 2  # models that a node was sent without a word, after which it counts as such a one


@dataclass
class VersionTrackerState:
    """By node: the version it confirmed last, and the one that it should confirm; how many
    versions it was sent since it confirmed one.
    """

    has: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    unheard: dict[int, int] = field(default_factory=dict)


class VersionTracker:
    """What nodes have said that they have; a node of which nobody knows gets the model whole."""

    def __init__(self, way: ModelSync, state: VersionTrackerState | None = None) -> None:
        self.way = way
        self._state = VersionTrackerState() if state is None else state

    def base_of(self, node: int) -> int | None:
        """Return the version on which a message to the node can build; None: on none."""
        base = self._state.has.get(node)
        return base if base is not None and self.way.knows(base) else None

    def silent(self, node: int) -> bool:
        """Return whether a node was sent several models that it does not skip, without a word."""
        return self._state.unheard.get(node, 0) >= SILENT and not self.way.skips

    def send(self, node: int, parcel: ModelUpdate) -> None:
        """Note what goes to a node."""
        version = parcel.note.get("version")
        if not self.way.skips:
            self._state.has.pop(node, None)  # until it answers nobody knows which it has
        if version is not None:
            self._state.sent[node] = version
            self._state.unheard[node] = self._state.unheard.get(node, 0) + 1

    def confirm(self, node: int, version: int | None) -> None:
        """Note which version a node says it has, if it is the one it was sent."""
        sent = self._state.sent.pop(node, None)
        if sent is not None and version == sent:
            self._state.has[node] = sent
            self._state.unheard.pop(node, None)

    def lose(self, node: int) -> None:
        """Note that nobody knows what a node has: it gets the model whole next."""
        self._state.has.pop(node, None)
        self._state.sent.pop(node, None)

    def forget(self, nodes: Iterable[int]) -> None:
        """Forget nodes that are gone."""
        for node in nodes:
            self.lose(node)
            self._state.unheard.pop(node, None)

    @property
    def held(self) -> set[int]:
        """The versions that nodes have, or may have soon."""
        return {*self._state.has.values(), *self._state.sent.values()}


SPARE = 1000  # nodes that may be gone without being forgotten, however few live
# a content's id, the node's version, what is applied, whether it lacks the native tensors
Key = tuple[int, int | None, int | None, bool]


class Encoded(NamedTuple):
    """A content as it is sent, what it carries of the model, and its bytes."""

    content: RecordDict
    parcel: ModelUpdate
    size: Size


class Received(NamedTuple):
    """A node's update, sparse as it was sent, what it measured, the native tensors it has now."""

    update: Update
    metrics: MetricRecord
    natives: Arrays


@dataclass
class ServerSessionState:
    """What the server knows of its nodes; `asked`: all that it was ever of; `given`: those that
    were sent the native tensors with which the run began.
    """

    asked: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    ledger: VersionTrackerState = field(default_factory=VersionTrackerState)
    receipts: AckTrackerState = field(default_factory=AckTrackerState)

    def go_back(self, along: Collection[int] = ()) -> None:
        """Note that nodes may have gone on since: on versions that this server does not know.

        They get the model whole. Which of their replies are applied is known as it was: of those
        that came later a node puts its last one back. Nodes that go back `along` with the server
        have what it knows that they have.
        """
        for kept in (self.ledger.has, self.ledger.sent):
            for node in kept.keys() - set(along):
                del kept[node]


class ServerSession:
    """Brings nodes to the newest model, tells them what was applied, and reads their replies.

    `layout`: of the model, where all nodes have the same. `plain_bytes`: of the model as Flower
    sends it without compression. `uplink`: of the nodes; else any method is
    accepted. `initial`: native tensors as the run begins with them.
    """

    def __init__(
        self,
        way: ModelSync,
        traffic: Traffic,
        layout: Layout | None = None,
        plain_bytes: int = 0,
        state: ServerSessionState | None = None,
        uplink: Codec | None = None,
        initial: Initial = NONE,
    ) -> None:
        state = ServerSessionState() if state is None else state
        self._asked, self._many = state.asked, SPARE
        self._given, self.initial = state.given, initial
        self.ledger = VersionTracker(way, state.ledger)
        self.receipts = AckTracker(state.receipts, uplink)
        self.traffic = traffic
        self.layout, self.plain_bytes = layout, plain_bytes

    def messages(
        self,
        nodes: Iterable[int],
        kind: str,
        orders: Mapping[str, Any],
        note: DownlinkHeader,
        natives: Mapping[str, NDArray[Any]] = {},
    ) -> list[tuple[Message, ModelUpdate]]:
        """Return a message of type `kind` for each node, with the newest model, and its parcel.

        `orders`: what the ClientApp is told; `natives`: native tensors as they are now. Nodes alike
        share one content.
        """
        config = filled(ConfigRecord, orders)
        content = filled(RecordDict, {"arrays": None, "config": config})
        cache: dict[Key, Encoded] = {}
        made = []
        for node in nodes:
            sent = self.encoded(
                node, content, "arrays", note, cache, self.plain_bytes, natives=natives
            )
            message = Message(sent.content, node, kind, group_id=str(note.number))
            made.append((message, sent.parcel))
        return made

    def encoded(
        self,
        node: int,
        content: RecordDict,
        name: str,
        note: DownlinkHeader,
        cache: dict[Key, Encoded],
        plain_bytes: int,
        *,
        decided: bool = True,
        natives: Mapping[str, NDArray[Any]] = {},
    ) -> Encoded:
        """Return a content for a node, its record `name` a parcel: it is sent, and counted.

        `plain_bytes`: what Flower would have sent in place of the parcel; `decided`: what has
        become of all that the node has sent; else it is told nothing of that. `natives`: native
        tensors as they are now.
        """
        base = self.ledger.base_of(node)
        if base is None and self.ledger.silent(node):
            base = UNHEARD
        self._asked.add(node)
        decided = decided and not self.receipts.unknown(node)
        applied = self.receipts.last_applied(node) if decided else None
        says = note._replace(applied=applied or None, undecided=None if decided else 1)
        lacks = bool(self.initial.arrays) and node not in self._given
        key = id(content), base, applied, lacks
        if key not in cache:
            alike = (e.parcel for k, e in cache.items() if k[:2] == key[:2] and k[3] == lacks)
            parcel = next(alike, None)
            parcel = parcel or self._with_natives(self.ledger.way.parcel(base), natives, lacks)
            told = written(says._replace(**parcel.note))
            shared = {k: parcel.arrays if k == name else v for k, v in content.items()}
            made = filled(RecordDict, {**shared, NOTE: told})
            cache[key] = Encoded(made, parcel, measured(made, NOTE))
        if lacks:
            self._given.add(node)
        sent = cache[key]
        self.ledger.send(node, sent.parcel)
        self.traffic.count_sent(sent.size, plain_bytes)
        return sent

    def _with_natives(
        self, parcel: ModelUpdate, natives: Mapping[str, NDArray[Any]], lacks: bool
    ) -> ModelUpdate:
        """Return a parcel with payloads of native tensors, if the model has such."""
        if not self.initial.arrays:
            return parcel
        arrays = parcel.arrays
        payloads = {NATIVE: self.initial.payload({**self.initial.arrays, **natives})}
        if lacks:
            payloads[INITIAL] = self.initial.whole
        for name, payload in payloads.items():
            if payload:
                arrays = with_payload(arrays, name, payload)
        note = {**parcel.note, "initial": self.initial.checksum}
        return parcel._replace(arrays=arrays, note=note)

    def gone(self, living: Callable[[], Collection[int]]) -> set[int]:
        """Forget nodes that are not there, once they are more than those that are; return them.

        Before that a node that is away may come back to what is known of it. `living`: returns the
        nodes that are there; it is not called as long as they are few.
        """
        if len(self._asked) <= self._many:
            return set()
        here = set(living())
        self._many = 2 * len(here) + SPARE
        if len(self._asked) <= self._many:
            return set()
        found = self._asked - here
        self._asked -= found
        self._given.difference_update(found)
        self.ledger.forget(found)
        self.receipts.forget(found)
        return found

    def opened(self, reply: Message, node: int, asked: int, plain_bytes: int) -> UplinkHeader:
        """Return what a node's reply says beside arrays; `asked`: the number of its message.

        The message tells the node: who else makes an error in its place may give another.

        The bytes of its content are counted: they have crossed the link, used or not;
        `plain_bytes`: what Flower would have sent. Raises `PayloadError` for an error, and for the
        reply to another message, sent again.
        """
        if reply.has_error():
            self.ledger.lose(node)
            if self.initial.arrays and OTHER_INITIAL in (reply.error.reason or ""):
                self._given.discard(node)
            raise PayloadError(reason_of(reply))
        payloads = payloads_of(reply.content)
        self.traffic.count_received(measured(reply.content, NOTE), plain_bytes if payloads else 0)
        native = self.initial.arrays and native_payload(reply.content) is not None
        if len(payloads) > 1 + bool(native):
            raise PayloadError(f"the reply holds {len(payloads)} payloads, one is asked for")
        note = read(reply.content, UplinkHeader)
        if note.number != asked:
            self.ledger.lose(node)
            raise PayloadError(f"it replies to message {note.number}: {asked} was to be answered")
        self.ledger.confirm(node, note.version)
        return note

    def read(self, reply: Message, node: int, asked: int, measured: Iterable[str] = ()) -> Received:
        """Return a node's update; whether it is applied is for `receipts.applied` to say.

        `asked`: the number of its message; `measured`: metrics that must be finite. Raises
        `PayloadError`, with the reason, for what cannot be used.
        """
        note, content = self.opened(reply, node, asked, self.plain_bytes), reply.content
        found, metrics = payload_of(content), next(iter(records(content, MetricRecord)), None)
        if found is None or metrics is None:
            raise PayloadError("a reply must hold a payload and a MetricRecord")
        if note.whole:
            raise PayloadError("the reply holds a model; an update is asked for")
        if not 0 < number(metrics[1], EXAMPLES) < 2 * MOST:
            raise PayloadError("its number of samples must be above 0, below 2^63")
        for name in measured:
            number(metrics[1], name)
        assert self.layout is not None  # who reads updates knows the model
        update = self.decode(node, found[1], note.sequence or 0, self.layout)
        natives = self.initial.all(native_payload(content)) if self.initial.arrays else {}
        return Received(update, metrics[1], natives)

    def decode(
        self,
        node: int,
        payload: bytes,
        sequence: int,
        layout: Layout,
        own: tuple[int, ...] = (),
    ) -> Update:
        """Decode a node's update, as `AckTracker.decode` does; its entries are counted."""
        update = self.receipts.decode(node, payload, sequence, layout, own)
        self.traffic.uplink_entries += len(update.values)
        self.traffic.uplink_entries_whole += update.layout.size
        return update
