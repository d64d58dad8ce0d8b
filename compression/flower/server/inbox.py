"""A server's inbox: counts, decodes, checks and screens the nodes' replies.

`ModelInbox` gives a strategy messages with decoded models. `UpdateInbox` gives a server of one flat
model the nodes' updates. Both count each reply that they reject, and log the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from logging import getLogger
from typing import NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, Error, Message, MetricRecord
from flwr.common.constant import ErrorCode

from ...base import Indices, PayloadError, Vector
from ...layout import Layout
from ..acks import OTHER_METHOD
from ..headers import HEADER, MOST, STEPS, UplinkHeader, number
from ..message_size import measured, size_of
from ..native_tensors import (
    Arrays,
    distances,
    native_payload,
    natives_of,
    with_natives,
)
from ..records import (
    FLAT,
    expect_readable,
    flat_record,
    layout_of,
    payload_of,
    records,
    to_vector,
    values_of,
    with_content,
)
from ..tensor_split import (
    Model,
    TensorSplit,
    form_of_updates,
    statistics_of,
    with_statistics,
)
from ..tied_weights import left_tied, widened_model, without
from ..uncompressed_warning import Uncompressed
from .failure_policy import FailurePolicy
from .norm_screen import (
    Screened,
    UpdateFilter,
    UpdateFilters,
    UpdateNorms,
    norms_of,
    scaled,
)
from .reply_checks import (
    ReplyRules,
    SentMessage,
    answered,
    expect_weight,
    expected,
    inconsistent,
    rebuilt,
)
from .session import ServerSession
from .statistics_screen import StatisticsSplit, norm_of

NOT_OPEN = "its message was answered before, or never sent"
ERROR_CODE = 1  # of the error that replaces an unusable reply
log = getLogger("edgewire")


class ReceivedUpdate(NamedTuple):
    """A node's update, divided into trained entries and BatchNorm's statistics.

    `indices`: the indices of the trained entries (None: all). `values`: the values there, float32
    (k,). `statistics`: BatchNorm's statistics, float32 (s,). `weight`: the node's weight in the
    mean. `natives`: the native tensors by name; `start`: those of the server. `every`: the indices
    of the whole update, with those of the statistics.
    """

    every: Indices | None
    indices: Indices | None
    values: Vector
    statistics: Vector
    metrics: MetricRecord
    weight: float
    natives: Arrays
    start: Arrays
    norms: UpdateNorms


class UpdateInbox:
    """Reads the nodes' updates of one flat model, and limits unusual ones.

    `split`: divides an update into trained entries and BatchNorm's statistics. `measured`: names of
    metrics that each reply must hold as finite numbers. `weighted_by_key`: the metric with a node's
    weight; None: equal weights.
    """

    def __init__(
        self,
        session: ServerSession,
        split: StatisticsSplit,
        filters: UpdateFilters,
        measured: Sequence[str],
        weighted_by_key: str | None = None,
    ) -> None:
        self._session, self._split, self.filters = session, split, filters
        self._measured, self._weight = measured, weighted_by_key

    def read(
        self, node: int, message: int, reply: Message | None, start: Vector, natives: Arrays
    ) -> ReceivedUpdate:
        """Decode a node's reply to its message with the number `message`.

        `start`: BatchNorm's statistics in the message, (s,). `natives`: the server's native
        tensors. Raises `PayloadError` for a reply that cannot be used.
        """
        if reply is None:
            raise PayloadError("no reply in time")
        update, metrics, reported = self._session.read(reply, node, message, self._measured)
        weight = number(values_of(metrics), self._weight) if self._weight else 1.0
        if not 0 < weight < 2 * MOST:
            raise PayloadError("its weight must be above 0, below 2^63")
        indices, values, statistics = self._split.cut(update)
        far = distances(reported, natives) if natives else None
        norms = UpdateNorms(norm_of(values), far, statistics, start)
        parts = indices, values, statistics
        return ReceivedUpdate(update.indices, *parts, metrics, weight, reported, natives, norms)

    def observe(self, found: Mapping[int, ReceivedUpdate]) -> None:
        """Compute from a round's updates, by node, what is usual.

        A server with rounds calls this until `UpdateFilters.knows`, before it accepts the updates.
        """
        norms = {node: each.norms for node, each in found.items()}
        self.filters.observe({self._split.layout: norms})
        self._capped({node: each.weight for node, each in found.items()})

    def _capped(self, weights: dict[int, float]) -> dict[int, float]:
        return self.filters.vectors.cap_weights(weights, steps=self._weight == STEPS)

    def accept(
        self, node: int, found: ReceivedUpdate, model: Vector, rate: float
    ) -> ReceivedUpdate:
        """Return an update within the filters' limits; raises `PayloadError` if it is refused.

        `model`: the server's model. `rate`: the rate at which the server applies the update.
        """
        used = self.filters.screen(node, self._split.layout, found.norms, model, rate)
        weight = found.weight
        if self._weight:
            weight = self._capped({node: weight})[node]
        if weight == found.weight and not used.limits(found.norms):
            return found
        values = found.values if used.share == 1 else found.values * np.float32(used.share)
        natives = scaled(found.natives, found.start, used.natives)
        statistics = used.statistics
        return found._replace(values=values, statistics=statistics, natives=natives, weight=weight)


class InFlight:
    """The messages with a model for which the server waits for a reply."""

    def __init__(self) -> None:
        self._sent: dict[str, SentMessage] = {}  # by the message's id
        self._owing: dict[int, list[str]] = {}  # by node: ids of messages for training, in order

    def add(self, messages: Iterable[Message], sent: Iterable[SentMessage | None]) -> list[str]:
        """Store data about messages that were sent; return the ids that the grid has given them.

        The ids come from the messages, because a grid may return no id for a message to a node that
        has left.
        """
        ids = [message.metadata.message_id for message in messages]
        added = {i: each for i, each in zip(ids, sent, strict=True) if each is not None}
        self._sent |= added
        for message_id, each in added.items():
            if each.train:
                self._owing.setdefault(each.node, []).append(message_id)
        return ids

    def owes(self, node: int) -> bool:
        """Return whether the server waits for a node's reply to a message for training.

        A node replies in the order of the messages. So a message is lost if it was sent before the
        message that the node last replied to.
        """
        return node in self._owing

    def forget(self, nodes: set[int]) -> None:
        """Delete the data of nodes that have left the run, and of their messages."""
        self._sent = {key: sent for key, sent in self._sent.items() if sent.node not in nodes}
        for node in nodes:
            self._owing.pop(node, None)

    def asked(self, reply: Message) -> SentMessage | None:
        """Return the data of the message that a reply answers; None if the message is unknown."""
        return self._sent.get(reply.metadata.reply_to_message_id)

    def take(self, message_id: str) -> SentMessage | None:
        """Return the data of a message, and delete it; None if it is unknown."""
        found = self._sent.pop(message_id, None)
        if found is not None and message_id in (owed := self._owing.get(found.node, [])):
            del owed[: owed.index(message_id) + 1]
            if not owed:
                del self._owing[found.node]
        return found


NOT_REACHED = (  # errors that the grid makes if it cannot reach a node
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def count_received(replies: Sequence[Message]) -> int:
    """Return how many replies come from nodes, without the errors that the grid makes."""
    return sum(not r.has_error() or r.error.code not in NOT_REACHED for r in replies)


def count_used(replies: Sequence[Message], asked: Sequence[SentMessage | None]) -> int:
    """Return how many replies to messages for training are not errors."""
    pairs = zip(replies, asked, strict=True)
    return sum(sent is not None and sent.train and not r.has_error() for r, sent in pairs)


class ModelInbox:
    """Puts decoded models in place of the payloads in replies, and errors in place of bad replies.

    `counts`: names of tensors that were not floats in an earlier model. `look_at_names` is called
    with each payload, and may warn of tensors without names.
    """

    def __init__(
        self,
        session: ServerSession,
        failures: FailurePolicy,
        filters: UpdateFilters,
        rules: ReplyRules,
        counts: Collection[str],
        uncompressed: Uncompressed,
        look_at_names: Callable[[TensorSplit, bytes, tuple[int, ...]], None],
    ) -> None:
        self._session, self._failures, self._filters = session, failures, filters
        self._rules, self._counts = rules, counts
        self._uncompressed, self._look_at_names = uncompressed, look_at_names
        self._traffic = session.traffic
        self.in_flight = InFlight()
        self._norms: dict[str, UpdateNorms] = {}  # by the id of the message that a reply answers

    def take(
        self, found: Iterable[Message], server_round: int, *, together: bool
    ) -> tuple[list[Message], int]:
        """Return replies that a strategy can use, or errors; and how many updates are usable.

        `together`: True if the strategy aggregates these replies together. Then a reply that holds
        other tensors or metrics than most replies becomes an error, because a strategy would fail
        with such a mixture (`ReplyRules.uneven`).
        """
        found = list(found)
        asked = [self.in_flight.asked(reply) for reply in found]
        replies = [self._read(reply, server_round) for reply in found]
        if together and not self._rules.uneven:
            bad = inconsistent(replies, asked, self._rules.weighted_by_key)
            replies = self._without(replies, asked, bad, server_round)
        replies = self._without(replies, asked, self._screened(replies, asked), server_round)
        if replies:
            self._uncompressed.answered()
        return replies, count_used(replies, asked)

    def forget(self, nodes: set[int]) -> None:
        """Delete the data of nodes that have left the run, and of their messages."""
        self.in_flight.forget(nodes)
        self._filters.forget(nodes)

    def _read(self, reply: Message, server_round: int) -> Message:
        """Return a reply with a decoded model in place of its payload; an error if unusable."""
        sent = self.in_flight.take(reply.metadata.reply_to_message_id)
        if sent is None and reply.has_error():
            return reply  # its message held no model
        if sent is None and payload_of(reply.content) is None:
            self._traffic.uplink_other_bytes += size_of(reply.content)
            self._uncompressed.received(reply, asked=False)
            return self._readable(reply, server_round)
        if sent is None:
            self._traffic.count_received(measured(reply.content, HEADER), 0)
            node = reply.metadata.src_node_id
            return self._refused(reply, node, server_round, NOT_OPEN)
        try:
            header = self._session.opened(reply, sent.node, sent.number, sent.plain_bytes)
            reply.content.pop(HEADER, None)
            self._uncompressed.received(reply, asked=True)
            expect_readable(reply.content)
            if not sent.kind.startswith("query"):
                expect_weight(reply.content, self._rules.weighted_by_key)
            if sent.train and records(reply.content, ArrayRecord):
                self._unpack(reply, header, sent)
            if sent.kind in self._rules.metrics or sent.kind in self._rules.sums:
                reply.content = rebuilt(reply.content, sent, self._rules)
        except PayloadError as error:
            return self._left_out(reply, sent.node, sent.number, str(error))
        return reply

    def _readable(self, reply: Message, server_round: int) -> Message:
        """Return an uncompressed reply, or an error if its arrays cannot be read."""
        try:
            if not reply.has_error():
                expect_readable(reply.content)
        except PayloadError as error:
            return self._refused(reply, reply.metadata.src_node_id, server_round, str(error))
        return reply

    def _left_out(self, reply: Message, node: int, number: int, reason: str) -> Message:
        self._session.acks.drop(node)
        return self._refused(reply, node, number, reason)

    def _refused(self, reply: Message, node: int, number: int, reason: str) -> Message:
        self._failures.leave_out(node, reason, f"round {number}: ")
        return reply if reply.has_error() else with_content(reply, None, Error(ERROR_CODE, reason))

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
        uplink = self._rules.uplink
        if uplink is not None and (whole != uplink.exact or named):
            raise PayloadError(OTHER_METHOD)
        form = expected(payload, sent.form, whole=whole, named=named, counts=self._counts)
        ties = left_tied(() if named else sent.ties, header.untied)
        small = without(form, ties)
        sequence = header.sequence or 0
        update = self._session.decode(sent.node, payload, sequence, small.whole, small.beside)
        model = answered(update, small, sent.form, sent.start, whole=whole)
        model = widened_model(model, form, ties)
        change = norms_of(form, model, sent.form, sent.start)
        if self._session.layout is None:
            answer = form.arrays(model)
        else:
            natives = (
                self._session.initial.all(native_payload(reply.content)) if sent.natives else {}
            )
            answer = with_natives(flat_record(model.vector), natives)
            if change is not None and natives:
                change = change._replace(natives=distances(natives, sent.natives))
        if change is not None:
            self._norms[reply.metadata.reply_to_message_id] = change
        reply.content[name] = answer
        self._look_at_names(form, payload, update.exact)

    def _screened(
        self, replies: Sequence[Message], asked: Sequence[SentMessage | None]
    ) -> dict[int, str]:
        """Scale down unusual replies in place; return, by the reply's `id`, why others are refused.

        `asked`: the message of each reply.
        """
        norms, self._norms = self._norms, {}
        trained = [
            (reply, sent, norms[reply.metadata.reply_to_message_id])
            for reply, sent in zip(replies, asked, strict=True)
            if sent and not reply.has_error() and reply.metadata.reply_to_message_id in norms
        ]
        by_layout: dict[Layout, dict[int, UpdateNorms]] = {}
        for _, sent, found in trained:
            by_layout.setdefault(statistics_of(sent.form)[0], {})[sent.node] = found
        self._filters.observe(by_layout)
        bad, good = dict[int, str](), []
        for reply, sent, found in trained:
            layout, start = statistics_of(sent.form)[0], sent.start.vector
            try:
                used = self._filters.screen(sent.node, layout, found, start)
            except PayloadError as error:
                bad[id(reply)] = str(error)
                continue
            if used.limits(found):
                _shorten(reply, sent, used)
            good.append((reply, sent))
        weight = self._rules.weighted_by_key
        _weigh(good, self._filters.vectors, weight)
        evaluated = [
            (reply, sent)
            for reply, sent in zip(replies, asked, strict=True)
            if sent and sent.kind.startswith("evaluate") and not reply.has_error()
        ]
        _weigh(evaluated, self._filters.vectors, weight, "evaluations")
        summed = [(reply, sent) for reply, sent in evaluated if sent.kind in self._rules.sums]
        _weigh(summed, self._filters.vectors, weight, "sums", {weight, *self._rules.bounds})
        return bad

    def _without(
        self,
        replies: list[Message],
        asked: Sequence[SentMessage | None],
        bad: Mapping[int, str],
        server_round: int,
    ) -> list[Message]:
        """Put errors in place of bad replies; `bad`: the reason for each, by the reply's `id`."""
        return [
            self._left_out(reply, sent.node, server_round, bad[id(reply)])
            if sent is not None and id(reply) in bad
            else reply
            for reply, sent in zip(replies, asked, strict=True)
        ]


def _shorten(reply: Message, sent: SentMessage, used: Screened) -> None:
    """Put what may be used of a reply's update in place of the update.

    The update is the difference between the tensors in the reply and those in the message.
    """
    name, record = records(reply.content, ArrayRecord)[0]
    form = sent.form
    flat = FLAT in record
    if flat:
        model = Model(to_vector(record))
    else:
        form = form_of_updates(layout_of(record), form.patterns)
        model = form.model(record)
    vector, share = model.vector, used.share
    if share < 1:
        vector = _between(sent.start.vector, vector, share)
    before = sent.natives if flat else {each.name: each.array for each in sent.start.own}
    after = natives_of(record) if flat else {each.name: each.array for each in model.own}
    after = scaled(after, before, used.natives)
    own = tuple(each._replace(array=after[each.name]) for each in model.own)
    model = with_statistics(form, Model(vector, own), used.statistics)
    shorter = with_natives(flat_record(model.vector), after) if flat else None
    reply.content[name] = form.arrays(model) if shorter is None else shorter


def _between(start: Vector, end: Vector, share: float) -> Vector:
    return np.asarray(start + np.float32(share) * (end - start), dtype=np.float32)


def _weigh(
    replies: Iterable[tuple[Message, SentMessage]],
    screen: UpdateFilter,
    key: str,
    kind: str = "weights",
    others: Collection[str] = (),
) -> None:
    """Limit the weights in replies to a multiple of the usual weight, and log each change.

    With `others`, a weight is multiplied by the magnitude of the means that `others` does not name.
    """
    found = {
        sent.node: metrics
        for reply, sent in replies
        for _, metrics in records(reply.content, MetricRecord)
        if key in metrics
    }
    said = {node: cast(float, metrics[key]) for node, metrics in found.items()}
    sizes = dict.fromkeys(found, 1.0)
    for node, metrics in found.items() if others else ():
        means = (np.ravel(mean).tolist() for name, mean in metrics.items() if name not in others)
        sizes[node] = sum(abs(value) for mean in means for value in mean)
    products = {node: size * said[node] for node, size in sizes.items() if size}
    for node, weight in screen.cap_weights(products, kind=kind).items():
        if weight != products[node]:
            used = weight / sizes[node]
            found[node][key] = int(used) if isinstance(said[node], int) and not others else used
            if not screen.equal:
                log.warning("node %d: its %s of %g counts as %g", node, key, said[node], used)
