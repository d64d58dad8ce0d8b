"""A Grid for the server that sends models as payloads and decodes the nodes' updates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from ...codec import Codec
from ...make import chosen
from ...screening import Screening
from ..headers import DownlinkHeader, server_round, trains
from ..message_size import size_of
from ..records import records, with_content
from ..tensor_split import Model
from ..timed_grid import GridWrapper, SlowestReply, gathered
from ..traffic import Traffic
from ..uncompressed_warning import Uncompressed
from .acks import InferredAcks, InferredAcksState
from .delta_sync import DeltaSync, DeltaSyncState
from .failure_policy import ONE_ROUND, FailureLimits, FailurePolicy, FailurePolicyState
from .inbox import count_received
from .model_replies import ModelReplies
from .norm_screen import Screens, ScreensState
from .reply_checks import ReplyRules, SentMessage
from .sent_model import FoundModel, SentModels, SentModelsState
from .session import (
    Encoded,
    InitialModel,
    Key,
    ServerSession,
    ServerSessionState,
    forget_nodes,
)

ANY_REPLY = ReplyRules()


@dataclass
class CompressedGridState:
    """State of a `CompressedGrid` that waits for no reply; a checkpoint holds it.

    `round`: the number of rounds of training so far.
    """

    round: int = 0
    session: ServerSessionState = field(default_factory=ServerSessionState)
    deltas: DeltaSyncState = field(default_factory=DeltaSyncState)
    inferred_acks: InferredAcksState = field(default_factory=InferredAcksState)
    failures: FailurePolicyState = field(default_factory=FailurePolicyState)
    screens: ScreensState = field(default_factory=ScreensState)
    models: SentModelsState = field(default_factory=SentModelsState)


class CompressedGrid(GridWrapper):
    """Wraps a Grid: sends models as payloads, reads updates from payloads, and counts the bytes.

    Start a strategy with a `CompressedGrid` instead of the Grid. The strategy sends and gets named
    arrays in their own dtypes; it needs no code for payloads. The nodes' ClientApp needs a
    `CompressionMod` among its mods. `downlink`: a codec, or the name of a method. With it the
    server sends a node the change since the version of the model that the node has. If it is None,
    the server sends the whole model each time, without loss. `exact`: patterns of names; tensors
    with such a name are sent in their own dtype. `seed`: for the random numbers of the downlink
    codec. `compact_records`: True if the records beside the payloads are sent in compact form, in
    both directions (`compact_records.py`). `CompressionMod` must then be the app's first mod.

    A reply is unusable if it is an error, cannot be decoded, belongs to another model, has a weight
    that is not a positive number, or breaks the rules in `replies`. The strategy gets an error in
    its place, `traffic.failures` counts it, and the log says why. If no update was usable in too
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
        compact_records: bool = False,
    ) -> None:
        if not isinstance(grid, Grid) or isinstance(grid, CompressedGrid):
            raise TypeError(
                f"CompressedGrid wraps a Grid of Flower's (flwr.serverapp.Grid), not {grid!r}"
            )
        super().__init__(grid)
        self.traffic = Traffic() if traffic is None else traffic
        self.state = state = CompressedGridState() if state is None else state
        codec = None if downlink is None else chosen(downlink)
        if codec is not None:
            codec.expect_receiver("differences")
        self._deltas = DeltaSync(codec, seed, state.deltas, model.seeded if model else None)
        self._session = ServerSession(
            self._deltas,
            self.traffic,
            model,
            state.session,
            replies.uplink,
            compact_records=compact_records,
        )
        self._failures = FailurePolicy(self.traffic, failures, state.failures)
        apart = () if codec is None else codec.exact_names
        self._layout = layout = self._session.layout
        self._models = SentModels(layout, exact, self._session.plain_bytes, state.models, apart)
        self._uncompressed = Uncompressed(
            self.traffic, enabled=layout is None, downlink=codec is not None
        )
        self._inferred_acks = InferredAcks(self._session.acks, state.inferred_acks)
        self._replies = ModelReplies(
            self._session,
            self._failures,
            Screens(screening, state.screens),
            replies,
            state.models.counts,
            self._uncompressed,
        )
        self._slowest = defaultdict[str, SlowestReply](SlowestReply)  # by type of message

    # Flower's Grid

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> list[str]:
        """Send messages with payloads in place of models; return the messages' ids."""
        self._session.acks.applied(self._session.acks.pending)
        outgoing, sent = self._outgoing(list(messages))
        self.state.round += any(each is not None and each.train for each in sent)
        ids = list(super().push_messages(outgoing, ttl))
        self._replies.in_flight.add(outgoing, sent)
        return ids

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        """Return replies with decoded models in place of payloads, and count the replies."""
        found, used = self._replies.take(replies, self.state.round, together=False)
        self.traffic.client_updates += used
        return found

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
        if self.virtual_seconds is None:
            kind = outgoing[0].metadata.message_type if outgoing else ""
            wait = math.inf if timeout is None else timeout
            found = gathered(self._grid, outgoing, wait, self._slowest[kind])
        else:
            found = self._grid.send_and_receive(outgoing, timeout=timeout)
        in_flight = self._replies.in_flight
        ids = in_flight.add(outgoing, sent)
        replies, used = self._replies.take(found, self.state.round, together=True)
        for missing in filter(None, map(in_flight.take, ids)):
            self._failures.leave_out(missing.node, "no reply", f"round {missing.number}: ")
        if train:
            self._failures.end_round(self.state.round, used, count_received(replies))
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
            state = self.state
            there = state.screens, state.inferred_acks, state.failures, self._replies.in_flight
            forget_nodes(gone, *there)
        self._deltas.tidy(self._session.versions.held)
        made, sent = list[Message](), list[SentMessage | None]()
        for message in messages:
            if id(message.content) not in models:
                found = self._models.of(message.content, first=not self.state.round)
                models[id(message.content)] = found
        self._inferred_acks.give(
            messages, {key: each.model for key, each in models.items() if each}
        )
        busy = set[int]()
        for message in messages:
            if (model := models[id(message.content)]) is None:
                self.traffic.downlink_other_bytes += size_of(message.content)
                self._uncompressed.count(message, None)
                made.append(message)
                sent.append(None)
                continue
            node, train = message.metadata.dst_node_id, trains(message)
            decided = node not in busy and not self._replies.in_flight.owes(node)
            one, data = self._encoded(message, model, len(messages), cache, decided)
            busy |= {node} if train else set()
            made.append(one)
            sent.append(data)
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
        number = server_round(content) or self.state.round + 1
        named = self._layout is None
        self._deltas.offer(values, form, number=number, named=named, ties=ties)
        exact = list(form.patterns) or None
        header = DownlinkHeader(number, workers=workers if train else None, exact=exact)
        name = records(content, ArrayRecord)[0][0]
        session = self._session
        encoded, model_update, _, _ = session.encoded(
            node, content, name, header, cache, plain, decided=decided, natives=natives
        )
        self._uncompressed.count(message, name)
        kind, received = message.metadata.message_type, cast(Model, model_update.received)
        sent = SentMessage(node, number, kind, name, train, form, received, plain, natives, ties)
        return with_content(message, encoded), sent
