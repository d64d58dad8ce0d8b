"""A Grid for the server that sends models as payloads and decodes the nodes' updates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.app import ArrayRecord, Error, Message
from flwr.serverapp import Grid

from ...base import PayloadError
from ...codec import Codec
from ...screening import Screening
from ...validation import expect_kinds
from ..acks import OTHER_METHOD
from ..headers import HEADER, DownlinkHeader, UplinkHeader, server_round, trains
from ..message_size import measured, size_of
from ..method import chosen
from ..native_tensors import distance, native_payload, with_natives
from ..records import expect_readable, flat_record, payload_of, records, with_content
from ..tensor_split import Model, TensorSplit
from ..tied_weights import left_tied, widened_model, without
from ..timed_grid import GridWrapper
from ..timeouts import FOREVER, SlowestReply, gathered
from ..traffic import Traffic, warn_of_no_names
from ..uncompressed import NO_DOWNLINK, UNKNOWN, Uncompressed
from .failure_policy import ONE_ROUND, FailureLimits, FailurePolicy, FailurePolicyState
from .inbox import (
    InFlight,
    ReplyRules,
    SentMessage,
    answered,
    count_received,
    count_used,
    expect_weight,
    expected,
    inconsistent,
    rebuilt,
)
from .inferred_acks import InferredAcks, InferredAcksState
from .model_sync import DeltaSync, DeltaSyncState
from .sent_model import FoundModel, SentModels, SentModelsState
from .session import Encoded, InitialModel, Key, ServerSession, ServerSessionState
from .statistics_screen import StatisticsScreen, StatisticsState
from .update_filter import (
    UpdateFilter,
    UpdateFilters,
    UpdateFilterState,
    UpdateNorms,
    norms_of,
    screened,
)

ANY_REPLY = ReplyRules()
UNUSABLE = 1  # code of the error that replaces an unusable reply


@dataclass
class CompressedGridState:
    """State of a `CompressedGrid` that waits for no reply; a checkpoint holds it.

    `round`: the number of rounds of training so far. `warned`: True if the log has warned of
    tensors without names.
    """

    round: int = 0
    session: ServerSessionState = field(default_factory=ServerSessionState)
    deltas: DeltaSyncState = field(default_factory=DeltaSyncState)
    inferred_acks: InferredAcksState = field(default_factory=InferredAcksState)
    failures: FailurePolicyState = field(default_factory=FailurePolicyState)
    screen: UpdateFilterState = field(default_factory=UpdateFilterState)
    beside: UpdateFilterState = field(default_factory=UpdateFilterState)
    statistics: StatisticsState = field(default_factory=StatisticsState)
    models: SentModelsState = field(default_factory=SentModelsState)
    warned: bool = False


class CompressedGrid(GridWrapper):
    """Wraps a Grid: sends models as payloads, reads updates from payloads, and counts the bytes.

    Start a strategy with a `CompressedGrid` instead of the Grid. The strategy sends and gets named
    arrays in their own dtypes; it needs no code for payloads. The nodes' ClientApp needs a
    `CompressionMod` among its mods. `downlink`: a codec, or the name of a method. With it the
    server sends a node the change since the version of the model that the node has. If it is None,
    the server sends the whole model each time, without loss. `exact`: patterns of names; tensors
    with such a name are sent in their own dtype. `seed`: for the random numbers of the downlink
    codec.

    A reply is unusable if it is an error, cannot be decoded, or belongs to another model. It is
    also unusable if its weight is not a positive number, or if it does not follow the rules in
    `replies`. The strategy gets an error in place of an unusable reply. `traffic.failures` counts
    these replies, and the log says why each is unusable. If no reply to training was usable in too
    many consecutive calls (`failures`), `send_and_receive` raises `PayloadError`. `screening`: the
    limits for updates with an unusually large norm, and for weights; None: `Screening()`.

    From the models that the strategy sends next, the class infers whether the strategy has applied
    an update (`InferredAcks`). If it has not, and the node's method has a residual, the node adds
    the update back to its residual.

    `model`: the model at the start of the run, if the nodes know its layout. Then the strategy and
    the nodes' app get the model as one flat vector. `state`: the state of an earlier
    `CompressedGrid` with the same options, from which this one resumes. Raises `TypeError` or
    `ValueError` for values that are not allowed.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        downlink: Codec | str | None = None,
        exact: Sequence[str] = (),
        seed: int = 0,
        screening: Screening | None = None,
        replies: ReplyRules = ANY_REPLY,
        failures: FailureLimits = ONE_ROUND,
        model: InitialModel | None = None,
        traffic: Traffic | None = None,
        state: CompressedGridState | None = None,
    ) -> None:
        if not isinstance(grid, Grid):
            raise TypeError(
                f"CompressedGrid wraps a Grid of Flower's (flwr.serverapp.Grid), not {grid!r}"
            )
        if not isinstance(exact, list | tuple) or not all(isinstance(e, str) for e in exact):
            raise TypeError(f"exact must be a list of patterns of names, not {exact!r}")
        if type(seed) is not int or seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, not {seed!r}")
        expect_kinds(replies=(replies, ReplyRules), failures=(failures, FailureLimits))
        optional = {
            "screening": (screening, Screening),
            "model": (model, InitialModel),
            "traffic": (traffic, Traffic),
            "state": (state, CompressedGridState),
        }
        expect_kinds(**{name: each for name, each in optional.items() if each[0] is not None})
        super().__init__(grid)
        self.traffic = Traffic() if traffic is None else traffic
        self.state = state = CompressedGridState() if state is None else state
        codec = None if downlink is None else chosen(downlink)
        self._whole = codec is None  # the server sends whole models
        self._deltas = DeltaSync(codec, seed, state.deltas)
        self._session = ServerSession(
            self._deltas, self.traffic, model, state.session, replies.uplink
        )
        self._replies = replies
        self._failures = FailurePolicy(self.traffic, failures, state.failures)
        apart = () if codec is None else codec.exact_names
        self._layout = layout = self._session.layout
        plain_bytes = self._session.plain_bytes
        self._models = SentModels(layout, exact, plain_bytes, state.models, apart)
        self._in_flight = InFlight()
        self._uncompressed = Uncompressed(self.traffic) if layout is None else None
        self._inferred_acks = InferredAcks(self._session.acks, state.inferred_acks)
        self._filters = UpdateFilters(
            UpdateFilter(screening, state.screen),
            UpdateFilter(screening, state.beside, floor=1.0),
            StatisticsScreen(screening, state.statistics),
        )
        self._norms: dict[str, UpdateNorms] = {}  # by the id of the message that a reply answers
        self._slowest = defaultdict[str, SlowestReply](SlowestReply)  # by type of message

    # Flower's Grid

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> list[str]:
        """Send messages with payloads in place of models; return the messages' ids."""
        self._session.acks.applied(self._session.acks.pending)
        outgoing, sent = self._outgoing(list(messages))
        self.state.round += any(each is not None and each.train for each in sent)
        ids = list(super().push_messages(outgoing, ttl))
        self._in_flight.add(outgoing, sent)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, with decoded models in place of payloads."""
        return self._pulled(super().pull_messages(message_ids))

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies; return none at the deadline (`TimedGrid.pull_before`)."""
        return self._pulled(super().pull_before(message_ids, deadline))

    def _pulled(self, found: Iterable[Message]) -> list[Message]:
        """Return replies with decoded models in place of payloads, and count the replies."""
        found = list(found)
        asked = [self._in_flight.asked(reply) for reply in found]
        replies = self._screened([self._incoming(reply) for reply in found], asked)
        self.traffic.client_updates += count_used(replies, asked)
        if replies and self._uncompressed:
            self._uncompressed.answered()
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and wait for the replies; unusable replies become errors."""
        messages = list(messages)
        outgoing, sent = self._outgoing(messages)
        train = any(each is not None and each.train for each in sent)
        if train:
            self.state.round += 1
            self._failures.begin_round(asked=len(sent))
        if self.virtual_seconds is None and timeout is not None and timeout >= FOREVER:
            kind = outgoing[0].metadata.message_type if outgoing else ""
            found = gathered(self._grid, outgoing, timeout, self._slowest[kind])
        else:
            found = list(super().send_and_receive(outgoing, timeout=timeout))
        ids = self._in_flight.add(outgoing, sent)
        asked = [self._in_flight.asked(reply) for reply in found]
        replies = [self._incoming(reply) for reply in found]
        if not self._replies.uneven:
            replies = self._alike(replies, asked)
        replies = self._screened(replies, asked)
        for missing in filter(None, map(self._in_flight.take, ids)):
            self._failures.leave_out(missing.number, missing.node, "no reply")
        if replies and self._uncompressed:
            self._uncompressed.answered()
        if train:
            self._failures.end_round(
                self.state.round, count_used(replies, asked), count_received(replies)
            )
        return replies

    def end(self) -> None:
        """Raise `PayloadError` if nodes were asked to train and no update was ever used."""
        self._failures.end()

    # from the server to the nodes

    def _outgoing(self, messages: list[Message]) -> tuple[list[Message], list[SentMessage | None]]:
        """Return messages with payloads in place of models, and what to store about each.

        Nodes that get the same contents share one object.
        """
        cache: dict[Key, Encoded] = {}
        models: dict[int, FoundModel | None] = {}
        if gone := self._session.gone(self._grid.get_node_ids):
            for each in (self._in_flight, self._inferred_acks, self._filters):
                each.forget(gone)
        self._deltas.tidy(self._session.versions.held)
        made, sent = list[Message](), list[SentMessage | None]()
        for message in messages:
            if id(message.content) not in models:
                found = self._models.of(message.content, first=not self.state.round)
                models[id(message.content)] = found
        if self._uncompressed:
            self._uncompressed.called({message.metadata.message_type for message in messages})
        self._inferred_acks.give(
            messages, {key: each.model for key, each in models.items() if each}
        )
        busy = set[int]()
        for message in messages:
            if (model := models[id(message.content)]) is None:
                self.traffic.downlink_other_bytes += size_of(message.content)
                self._look_at(message, None)
                made.append(message)
                sent.append(None)
                continue
            node, train = message.metadata.dst_node_id, trains(message)
            decided = node not in busy and not self._in_flight.owes(node)
            one, get_or_zeros = self._encoded(message, model, len(messages), cache, decided)
            busy |= {node} if train else set()
            made.append(one)
            sent.append(get_or_zeros)
        return made, sent

    def _encoded(
        self,
        message: Message,
        model: FoundModel,
        workers: int,
        cache: dict[Key, Encoded],
        decided: bool,
    ) -> tuple[Message, SentMessage]:
        form, values, plain, natives, ties = model
        content, node, train = message.content, message.metadata.dst_node_id, trains(message)
        self._deltas.offer(values, form, named=self._layout is None, ties=ties)
        number = server_round(content) or self.state.round + 1
        exact = list(form.patterns) or None
        header = DownlinkHeader(number, workers=workers if train else None, exact=exact)
        name = records(content, ArrayRecord)[0][0]
        session = self._session
        unheard = session.versions.base_of(node) is None and session.versions.silent(node)
        encoded, model_update, size = session.encoded(
            node, content, name, header, cache, plain, decided=decided, natives=natives
        )
        self._look_at(message, name)
        unknown = unheard and self._deltas.unheard is None
        if self._uncompressed and (unknown or self._whole):
            why = NO_DOWNLINK if self._whole else UNKNOWN
            self._uncompressed.whole(message.metadata.message_type, name, size[0], why)
        if not self.state.warned:
            self._look_at_names(form, next(iter(model_update.arrays.values())).data)
        kind, received = message.metadata.message_type, cast(Model, model_update.received)
        sent = SentMessage(node, number, kind, name, train, form, received, plain, natives, ties)
        return with_content(message, encoded), sent

    # from the nodes to the server

    def _incoming(self, reply: Message) -> Message:
        """Return a reply with a decoded model in place of its payload; an error if unusable."""
        sent = self._in_flight.take(reply.metadata.reply_to_message_id)
        if sent is None and reply.has_error():
            return reply  # its message held no model
        if sent is None and payload_of(reply.content) is None:
            self.traffic.uplink_other_bytes += size_of(reply.content)
            self._look_at_reply(reply, None)
            return self._readable(reply)
        if sent is None:
            self.traffic.count_received(measured(reply.content, HEADER), 0)
            node = reply.metadata.src_node_id
            reason = "its message was answered before, or never sent"
            return self._refused(reply, node, self.state.round, reason)
        try:
            header = self._session.opened(reply, sent.node, sent.number, sent.plain_bytes)
            reply.content.pop(HEADER, None)
            self._look_at_reply(reply, sent)
            expect_readable(reply.content)
            if not sent.kind.startswith("query"):
                expect_weight(reply.content, self._replies.weighted_by_key)
            if sent.train and records(reply.content, ArrayRecord):
                self._unpack(reply, header, sent)
            if (names := self._replies.metrics.get(sent.kind)) is not None:
                reply.content = rebuilt(reply.content, sent, names)
        except PayloadError as error:
            return self._left_out(reply, sent.node, sent.number, str(error))
        return reply

    def _readable(self, reply: Message) -> Message:
        """Return an uncompressed reply, or an error if its arrays cannot be read."""
        try:
            if not reply.has_error():
                expect_readable(reply.content)
        except PayloadError as error:
            return self._refused(reply, reply.metadata.src_node_id, self.state.round, str(error))
        return reply

    def _left_out(self, reply: Message, node: int, number: int, reason: str) -> Message:
        self._session.acks.drop(node)
        return self._refused(reply, node, number, reason)

    def _refused(self, reply: Message, node: int, number: int, reason: str) -> Message:
        self._failures.leave_out(number, node, reason)
        return reply if reply.has_error() else with_content(reply, None, Error(UNUSABLE, reason))

    def _unpack(self, reply: Message, header: UplinkHeader, sent: SentMessage) -> None:
        """Put the decoded model in place of a reply's payload.

        Raises `PayloadError` if the payload cannot be used. `sent`: the data about the message that
        the node replies to.
        """
        found = payload_of(reply.content)
        if found is None:
            raise PayloadError("the reply holds no payload; does the ClientApp use CompressionMod?")
        name, payload = found
        whole, named = bool(header.whole), bool(header.named)
        uplink = self._replies.uplink
        if uplink is not None and (whole != uplink.exact or named):
            raise PayloadError(OTHER_METHOD)
        counts = self.state.models.counts
        form = expected(payload, sent.form, whole=whole, named=named, counts=counts)
        ties = left_tied(() if named else sent.ties, header.untied)
        small = without(form, ties)
        sequence = header.sequence or 0
        update = self._session.decode(sent.node, payload, sequence, small.whole, small.beside)
        model = answered(update, small, sent.form, sent.start, whole=whole)
        model = widened_model(model, form, ties)
        change = norms_of(form, model, sent.form, sent.start)
        if self._layout is None:
            answer = form.arrays(model)
        else:
            natives = (
                self._session.initial.all(native_payload(reply.content)) if sent.natives else {}
            )
            answer = with_natives(flat_record(model.vector), natives)
            if change is not None and natives:
                change = change._replace(beside=distance(natives, sent.natives))
        if change is not None:
            self._norms[reply.metadata.reply_to_message_id] = change
        reply.content[name] = answer
        if not self.state.warned:
            self._look_at_names(form, payload, update.exact)

    def _look_at(self, message: Message, model: str | None) -> None:
        """Record which records of a message are sent uncompressed; `model`: the model's record."""
        if self._uncompressed and self._uncompressed.open:
            self._uncompressed.sent(message.metadata.message_type, message.content, model)

    def _look_at_reply(self, reply: Message, sent: SentMessage | None) -> None:
        """Record which records of a reply are sent uncompressed."""
        if self._uncompressed and self._uncompressed.open:
            kind, found = reply.metadata.message_type, payload_of(reply.content)
            self._uncompressed.count_received(
                kind, reply.content, found and found[0], sent is not None
            )

    def _look_at_names(
        self, form: TensorSplit, payload: bytes, exact: tuple[int, ...] = ()
    ) -> None:
        """Warn once if a lossy payload, in either direction, holds tensors without names."""
        self.state.warned = warn_of_no_names(form.whole.names, [*form.patterns, *exact], payload)

    def _screened(
        self, replies: list[Message], asked: Sequence[SentMessage | None]
    ) -> list[Message]:
        """Put errors in place of replies with refused updates, and scale too large updates down.

        An update is refused or scaled by the limits in `Screening`.
        """
        found, self._norms = self._norms, {}
        bad = screened(replies, asked, found, self._filters, self._replies.weighted_by_key)
        return self._without(replies, asked, bad)

    def _alike(self, replies: list[Message], asked: list[SentMessage | None]) -> list[Message]:
        """Put errors in place of replies that hold other tensors or metrics than most replies.

        A strategy would fail with such a mixture of replies.
        """
        return self._without(
            replies, asked, inconsistent(replies, asked, self._replies.weighted_by_key)
        )

    def _without(
        self, replies: list[Message], asked: Sequence[SentMessage | None], bad: Mapping[int, str]
    ) -> list[Message]:
        """Put errors in place of bad replies; `bad`: the reason for each, by the reply's `id`."""
        return [
            self._left_out(reply, sent.node, self.state.round, bad[id(reply)])
            if sent is not None and id(reply) in bad
            else reply
            for reply, sent in zip(replies, asked, strict=True)
        ]
