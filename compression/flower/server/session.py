"""The server's session with its nodes: makes messages, reads replies, and tracks each node.

For each node the session tracks its version of the model and its applied updates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from ...base import PayloadError
from ...codec import Codec
from ...coders.shared_context import SharedContext
from ...decoder import Update
from ...layout import Layout
from ...wire import StreamSizes, stream_sizes
from ..compact_records import compact, restored
from ..headers import HEADER, DownlinkHeader, UplinkHeader, read, written
from ..message_size import Size, measured
from ..native_tensors import (
    INITIAL,
    NATIVE,
    NONE,
    OTHER_INITIAL,
    Initial,
    native_bytes,
    native_payload,
    with_payload,
)
from ..records import Vector, content_of, filled, message_to, payloads_in, to_vector, values_of
from ..traffic import Traffic, flower_bytes, reason_of
from .acks import AckTracker, AckTrackerState
from .delta_sync import ModelUpdate
from .version_tracker import ModelSync, VersionTracker, VersionTrackerState

SPARE = 1000  # the server stores the state of at least SPARE nodes that have left
# Key of an encoded message: the content's id, the node's version, the number of its last applied
# reply, and the payload with the initial native tensors that the node lacks.
Key = tuple[int, int | None, int | None, bytes | None]


class Encoded(NamedTuple):
    """A message's encoded content, the model update in it, and its bytes."""

    content: RecordDict
    model_update: ModelUpdate
    size: Size
    streams: StreamSizes


@dataclass
class ServerSessionState:
    """State of `ServerSession`: the server's data about its nodes.

    `asked`: the nodes that got a message. `given`: the nodes that got the initial native tensors,
    without frozen parameters. `differing`: the nodes that reported other initial values; the next
    message to them has the server's, with frozen parameters. `versions`: the nodes' versions.
    `acks`: the nodes' applied updates. `ServerSession.gone` deletes the data of nodes that have
    left.
    """

    asked: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    differing: set[int] = field(default_factory=set)
    versions: VersionTrackerState = field(default_factory=VersionTrackerState)
    acks: AckTrackerState = field(default_factory=AckTrackerState)

    def go_back(self, along: Collection[int] = ()) -> None:
        """Record that the server resumes from a checkpoint, while nodes may have later versions.

        All nodes except `along` get the whole model next. The data about applied replies is not
        deleted. So a node whose last reply is newer than the checkpoint adds this reply back to its
        residual. `along`: the nodes that resume from the same checkpoint, and so have the versions
        in it.
        """
        for kept in (self.versions.has, self.versions.sent):
            for node in kept.keys() - set(along):
                del kept[node]
        self.versions.not_from_seed |= self.asked - set(along)


def forget_nodes(nodes: set[int], *states: Any) -> None:
    """Delete the data of nodes that have left the run, and their messages.

    `states`: sets of nodes, dictionaries by node, dictionaries whose values are messages (they have
    an attribute `node`), and dataclasses of these. Other values stay as they are.
    """
    for each in states:
        if is_dataclass(each):
            forget_nodes(nodes, *vars(each).values())
        elif isinstance(each, set):
            each -= nodes
        elif isinstance(each, dict):
            for key in [k for k, v in each.items() if {k, getattr(v, "node", k)} & nodes]:
                del each[key]


class InitialModel(NamedTuple):
    """A model at the start of a run, whose layout the server and all nodes know.

    `layout`: the layout of its float32 parameters and statistics, which are sent as one vector.
    `plain_bytes`: the bytes of the whole model if Flower sends it without compression. `natives`:
    its native tensors, which are sent beside the vector in their own dtypes. `seeded`: the vector,
    float32 (n,), if the nodes make it themselves from the run's seed; None: the server sends it.
    """

    layout: Layout
    plain_bytes: int
    natives: Initial = NONE
    seeded: Vector | None = None

    @classmethod
    def of(
        cls,
        layout: Layout,
        arrays: ArrayRecord,
        natives: Initial | None,
        *,
        from_seed: bool = False,
    ) -> InitialModel:
        """Return the model of a layout with these float32 arrays and native tensors."""
        plain_bytes = flower_bytes(arrays) + native_bytes(natives)
        seeded = to_vector(arrays).copy() if from_seed else None
        return cls(layout, plain_bytes, natives or NONE, seeded)


class ServerSession:
    """Makes the server's messages and reads the nodes' replies.

    A message holds a model update to the newest version, and says which of the node's replies was
    applied last. `sync`: how model updates are made. `model`: the model at the start of the run;
    None: the nodes may have different models. `uplink`: the nodes' codec; None accepts payloads of
    any method. `compact_records`: True if the records beside the payloads are sent in compact form
    in both directions (`compact_records.py`).
    """

    def __init__(
        self,
        sync: ModelSync,
        traffic: Traffic,
        model: InitialModel | None = None,
        state: ServerSessionState | None = None,
        uplink: Codec | None = None,
        *,
        compact_records: bool = False,
    ) -> None:
        self._state = state = ServerSessionState() if state is None else state
        self._compact = compact_records
        self._first: dict[str, Message] = {}  # an unsent message of each type
        self._asked, self._many = state.asked, SPARE
        self._given, self.initial = state.given, model.natives if model else NONE
        self._differing = state.differing
        seeded = model is not None and model.seeded is not None
        self.versions = VersionTracker(sync, state.versions, from_seed=seeded)
        self.acks = AckTracker(state.acks, uplink)
        self._contextual = uplink is not None and uplink.coder.contextual
        self.traffic = traffic
        self.layout = model.layout if model else None
        self.plain_bytes = model.plain_bytes if model else 0

    def messages(
        self,
        nodes: Iterable[int],
        kind: str,
        orders: Mapping[str, Any],
        header: DownlinkHeader,
        natives: Mapping[str, NDArray[Any]] = {},
    ) -> list[tuple[Message, ModelUpdate]]:
        """Return, for each node, a message of type `kind`, and the model update in the message.

        `orders`: the `config` for the ClientApp. `natives`: the current native tensors. Nodes with
        the same version get one shared content object.
        """
        config = filled(ConfigRecord, orders)
        content = filled(RecordDict, {"arrays": None, "config": config})
        cache: dict[Key, Encoded] = {}
        made, group = [], str(header.number)
        if kind not in self._first:
            self._first[kind] = Message(RecordDict(), 0, kind)
        for node in nodes:
            sent = self.encoded(
                node, content, "arrays", header, cache, self.plain_bytes, natives=natives
            )
            message = message_to(node, sent.content, group, self._first[kind])
            made.append((message, sent.model_update))
        return made

    def encoded(
        self,
        node: int,
        content: RecordDict,
        name: str,
        header: DownlinkHeader,
        cache: dict[Key, Encoded],
        plain_bytes: int,
        *,
        decided: bool = True,
        natives: Mapping[str, NDArray[Any]] = {},
    ) -> Encoded:
        """Return a message's content with a model update for a node, and count its bytes as sent.

        The model update replaces the record `name`. `plain_bytes`: the bytes of the model without
        compression. `decided`: False if it is unknown which of the node's replies were applied;
        then the header does not say it. `natives`: the current native tensors.
        """
        base = self.versions.base_of(node)
        self._asked.add(node)
        decided = decided and not self.acks.unknown(node)
        applied = self.acks.last_applied(node) if decided else None
        lacks = self._lacking(node)
        key = id(content), base, applied, lacks
        if key not in cache:
            alike = (e.model_update for k, e in cache.items() if k[:2] == key[:2] and k[3] == lacks)
            model_update = next(alike, None)
            model_update = model_update or self._with_natives(
                self.versions.sync.model_update(base), natives, lacks
            )
            undecided = None if decided else 1
            header_record = written(
                header._replace(applied=applied or None, undecided=undecided, **model_update.header)
            )
            shared = values_of(content) | {name: model_update.arrays}
            made = filled(RecordDict, {**shared, HEADER: header_record})
            made = compact(made) if self._compact else made
            payloads = (array.data for array in model_update.arrays.values())
            streams = stream_sizes(payloads, self.layout)
            cache[key] = Encoded(made, model_update, measured(made, HEADER), streams)
        if lacks is not None:
            self._given.add(node)
            self._differing.discard(node)
        sent = cache[key]
        self.versions.send(node, sent.model_update)
        self.traffic.count_sent(sent.size, plain_bytes, sent.streams)
        return sent

    def _lacking(self, node: int) -> bytes | None:
        """Return the payload with the initial native tensors that a node lacks; None for none."""
        if not self.initial.arrays:
            return None
        if node in self._differing:
            return self.initial.whole
        return None if node in self._given else self.initial.unfrozen

    def _with_natives(
        self, model_update: ModelUpdate, natives: Mapping[str, NDArray[Any]], lacks: bytes | None
    ) -> ModelUpdate:
        """Add the payloads with native tensors to a model update; `lacks`: as in `_lacking`."""
        if not self.initial.arrays:
            return model_update
        arrays = model_update.arrays
        payloads = {NATIVE: self.initial.payload({**self.initial.arrays, **natives})}
        if lacks is not None:
            payloads[INITIAL] = lacks
        for name, payload in payloads.items():
            if payload:
                arrays = with_payload(arrays, name, payload)
        header = {**model_update.header, "initial": self.initial.checksum}
        return model_update._replace(arrays=arrays, header=header)

    def gone(self, living: Callable[[], Collection[int]]) -> set[int]:
        """Delete the data of absent nodes if they are too many, and return the ids of these nodes.

        Absent nodes, which may come back, are too many if they outnumber the present nodes by more
        than `SPARE`. `living` returns the present nodes; it is not called for few nodes.
        """
        if len(self._asked) <= self._many:
            return set()
        here = set(living())
        self._many = 2 * len(here) + SPARE
        if len(self._asked) <= self._many:
            return set()
        found = self._asked - here
        forget_nodes(found, self._state)
        self.acks.nodes_left()
        return found

    def count_unused(self, reply: Message) -> None:
        """Count the bytes of a reply that the server fetches and does not use."""
        if not reply.has_error():
            plain_bytes = self.plain_bytes if payloads_in(reply.content) else 0
            self.traffic.count_received(measured(reply.content, HEADER), plain_bytes)

    def opened(self, reply: Message, node: int, asked: int, plain_bytes: int) -> UplinkHeader:
        """Count the bytes of a node's reply, restore its compact records, and return its header.

        `node`: the node that got the message; in an error that a grid makes, the reply may hold
        another node. `asked`: the `number` in the message's header. `plain_bytes`: the bytes of the
        reply's model without compression. Raises `PayloadError` for an error, for a wrong number of
        payloads, and for a reply to another message.
        """
        if reply.has_error():
            self.versions.invalidate(node)
            if self.initial.arrays and OTHER_INITIAL in (reply.error.reason or ""):
                self._differing.add(node)
            raise PayloadError(reason_of(reply))
        content = content_of(reply)
        payloads = payloads_in(content)
        self.traffic.count_received(measured(content, HEADER), plain_bytes if payloads else 0)
        if self._compact:
            content = reply.content = restored(content)
        native = self.initial.arrays and native_payload(content) is not None
        if payloads > 1 + bool(native):
            raise PayloadError(f"the reply holds {payloads} payloads, one is asked for")
        header = read(content, UplinkHeader)
        if header.number != asked:
            self.versions.invalidate(node)
            raise PayloadError(f"it replies to message {header.number}: {asked} was to be answered")
        self.versions.confirm(node, header.version)
        return header

    def decode_flat(self, node: int, payload: bytes, header: UplinkHeader) -> Update:
        """Decode a node's update of the session's flat model; raises the errors of `decode`."""
        assert self.layout is not None  # only such sessions have flat updates
        context = self.versions.sync.context(header.version) if self._contextual else None
        try:
            return self.decode(node, payload, header.sequence or 0, self.layout, context=context)
        except PayloadError:
            if self._contextual:  # the node may know another context: it gets a snapshot next
                self.versions.invalidate(node)
            raise

    def decode(
        self,
        node: int,
        payload: bytes,
        sequence: int,
        layout: Layout,
        own: tuple[int, ...] = (),
        context: SharedContext | None = None,
    ) -> Update:
        """Decode a node's update (see `AckTracker.decode`), and count its entries."""
        update = self.acks.decode(node, payload, sequence, layout, own, context)
        self.traffic.uplink_entries += len(update.values)
        self.traffic.uplink_entries_whole += update.layout.size
        self.traffic.count_decoded(update.sizes)
        return update
