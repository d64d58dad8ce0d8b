"""The server's half of compression: a wrapper for any message-API strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..codec import Codec
from ..make import make_codec
from ..stages import PayloadError, is_finite
from .arrays import (
    layout_of,
    payload_of,
    payload_record,
    records,
    replace_arrays,
)
from .checks import expect_model, expect_types
from .downlink import Downlink, Sent
from .form import Form, Model, form_of_updates, packed, unpacked
from .mixing import Mixing, Reported
from .replies import alike, warn_of_no_names, weight_of
from .state import NOTE, Note, note_of
from .traffic import Course, Traffic, flower_bytes, reason_of
from .uplink import Uplink

PLAIN = make_codec(quantizer="float32", coder="raw")


class Compressed(Strategy):
    """Wraps a message-API strategy so that models and updates travel as payloads.

    With a `downlink` codec the server sends what has changed since the version a node has, and the
    model whole only to a node that has none; without, the model whole each time, in its own types.
    `seed` is for a downlink that draws. With `flat=True`, for float32 alone, the nodes run a
    `CompressionMod` that knows the layout, and `evaluate_fn` and the result get the model as one
    flat vector; otherwise payloads carry the tensors' names for nodes that know nothing, and
    `evaluate_fn` and the result get named arrays.

    The strategy sees trained tensors. BatchNorm's running statistics, tensors that are no floats,
    and those whose names match a pattern in `exact` travel exactly, and are mixed of what the nodes
    report (`compression.flower.mixing`).

    A node whose reply is an error, does not decode, is for another model, or has no usable weight
    is left out of the round, counted in `traffic.failures` and named in the log. After `patience`
    rounds in a row in which there were replies and not one could be used, `start` raises
    `PayloadError`, and at the end if none ever was. Raises `TypeError` for what is no strategy of
    the message API, or no codec.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        downlink: Codec | None = None,
        seed: int = 0,
        flat: bool = False,
        weighted_by_key: str = "num-examples",
        exact: Sequence[str] = (),
        patience: int = 1,
    ) -> None:
        expect_types(strategy, downlink, exact)
        self.strategy = strategy
        self.flat = flat
        self.weighted_by_key = weighted_by_key
        self.exact = tuple(exact)
        self.traffic = Traffic()
        self._course = Course(self.traffic, patience)
        self.train_metrics: MetricRecord | None = None  # the last round's, from the nodes
        self.evaluate_metrics: MetricRecord | None = None
        self._form: Form | None = None  # of the model, once it has started
        self._flower_bytes = 0
        self._downlink = Downlink(PLAIN, downlink, seed)
        self._uplink = Uplink()
        self._sent: dict[int, Model] = {}  # node -> the version its update starts from
        self._warned = False

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the wrapped strategy's rounds; arguments and result as `Strategy.start`."""
        form = form_of_updates(layout_of(initial_arrays), self.exact)
        self._begin(form)
        self._flower_bytes = flower_bytes(initial_arrays)
        model = form.model(initial_arrays)
        inner_fn = evaluate_fn
        if evaluate_fn is not None and not self.flat:

            def inner_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
                return evaluate_fn(server_round, form.arrays(unpacked(arrays)))

        result = super().start(
            grid, packed(model), num_rounds, timeout, train_config, evaluate_config, inner_fn
        )
        self._course.end()
        if not self.flat and result.arrays:
            result.arrays = form.arrays(unpacked(result.arrays))
        return result

    def _begin(self, form: Form) -> None:
        """Take up a model. Raises `ValueError` for one that does not go with the options."""
        expect_model(self.strategy, form, self.exact, self.flat)
        self._form, self._mixing = form, Mixing(self.strategy, form)

    @property
    def form(self) -> Form:
        """How the model travels. Raises `ValueError` before `start`."""
        if self._form is None:
            raise ValueError(
                "Compressed has not started: what wraps a strategy goes inside of it, "
                "Compressed(Wrapper(strategy)), and its own start() is called"
            )
        return self._form

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure with the wrapped strategy; encode each distinct model once."""
        form = self.form
        self._sent.clear()
        model = unpacked(arrays)
        messages = self.strategy.configure_train(
            server_round, self._mixing.seen(model), config, grid
        )
        return self._encoded(messages, model, form, remember=True)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `configure_train`, for evaluation at the nodes."""
        form, model = self.form, unpacked(arrays)
        messages = self.strategy.configure_evaluate(
            server_round, self._mixing.seen(model), config, grid
        )
        return self._encoded(messages, model, form, remember=False)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies, leave out what cannot be used, aggregate the rest.

        Raises `PayloadError` if for `patience` rounds there was nothing to aggregate.
        """
        decoded: list[Message] = []
        reports: dict[int, Reported] = {}
        answers = 0
        self._course.begin_round(asked=len(self._sent))
        for reply in replies:  # one by one: a grid may hand them over while others are under way
            node, answers = reply.metadata.src_node_id, answers + 1
            try:
                reports[node] = self._decode_reply(reply, self._sent.pop(node, None))
                decoded.append(reply)
            except PayloadError as error:
                self._course.leave_out(server_round, node, str(error))
        accepted = self._alike(server_round, decoded)
        self._course.end_round(server_round, len(accepted), answers)
        for node in self._sent:
            self._course.leave_out(server_round, node, "no reply")
        self._sent.clear()
        aggregated: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
        if accepted:
            aggregated = self.strategy.aggregate_train(server_round, accepted)
        nodes = [reply.metadata.src_node_id for reply in accepted]
        self._uplink.applied(nodes if aggregated[0] is not None else [])
        self.train_metrics = aggregated[1]
        if aggregated[0] is None:
            return aggregated
        return packed(self._mixing.mixed(aggregated[0], [reports[n] for n in nodes])), aggregated[1]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate with the wrapped strategy what the nodes measured; count those that failed."""
        measured = []
        for reply in replies:
            try:
                self._read_note(reply)
                weight_of(reply.content, self.weighted_by_key)
                measured.append(reply)
            except PayloadError as error:
                self._course.leave_out(server_round, reply.metadata.src_node_id, str(error))
        usable = self._alike(server_round, measured)
        self.evaluate_metrics = None
        if usable:
            self.evaluate_metrics = self.strategy.aggregate_evaluate(server_round, usable)
        return self.evaluate_metrics

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        self.strategy.summary()

    def _encoded(
        self, messages: Iterable[Message], model: Model, form: Form, remember: bool
    ) -> list[Message]:
        """Exchange the model in each message for its payload; nodes share one encoded copy."""
        cache: dict[tuple[int, bytes | None], tuple[RecordDict, Sent]] = {}
        messages = list(messages)
        originals = [message.content for message in messages]  # kept alive: ids stay unique
        self._downlink.tidy()
        for message, content in zip(messages, originals, strict=True):
            node = message.metadata.dst_node_id
            key = id(content), self._downlink.base_of(node)
            if key not in cache:
                cache[key] = self._encode(content, model, form, key[1], len(messages) * remember)
            message.content, sent = cache[key]
            self._downlink.sent(node, sent)
            note = self._uplink.note_for(node)
            if note:
                note |= cast(ConfigRecord, message.content.get(NOTE, ConfigRecord()))
                message.content = RecordDict({**message.content, NOTE: ConfigRecord(note)})
            self.traffic.downlink_bytes += len(sent.payload)
            self.traffic.downlink_bytes_float32 += self._flower_bytes
            if remember:
                self._sent[node] = sent.received
        return messages

    def _encode(
        self, content: RecordDict, model: Model, form: Form, base: bytes | None, workers: int
    ) -> tuple[RecordDict, Sent]:
        """Return the content with a payload in it, and what was sent."""
        name, arrays = records(content, ArrayRecord)[0]
        whole = self._mixing.with_seen(arrays, model)
        sent = self._downlink.encode(whole, form, base, names=not self.flat)
        self._look_at_names(sent.payload)
        encoded = replace_arrays(content, name, payload_record(sent.payload))
        note: Note = {**sent.note, **({"exact": list(self.exact)} if self.exact else {})}
        note |= {"workers": workers} if workers else {}
        if note:
            encoded[NOTE] = ConfigRecord(note)
        return encoded, sent

    def _read_note(self, reply: Message) -> Note:
        """Take the note of compression out of a reply; raise `PayloadError` for an error reply."""
        if reply.has_error():
            raise PayloadError(reason_of(reply))
        note = note_of(reply.content)
        reply.content.pop(NOTE, None)
        self._downlink.confirm(reply.metadata.src_node_id, note)
        return note

    def _decode_reply(self, reply: Message, start: Model | None) -> Reported:
        """Put what the strategy sees in place of the payload; return what it does not see.

        Raises `PayloadError` for a reply that cannot be used.
        """
        note = self._read_note(reply)
        if start is None:
            raise PayloadError("a reply that was not asked for")
        if len(records(reply.content, ArrayRecord)) != 1:
            raise PayloadError("a reply must hold one ArrayRecord")
        weight = weight_of(reply.content, self.weighted_by_key)
        found = payload_of(reply.content)
        if found is None:
            raise PayloadError("the reply holds no payload; does the ClientApp use CompressionMod?")
        name, payload = found
        self.traffic.uplink_bytes += len(payload)  # it has crossed the link, used or not
        self.traffic.uplink_bytes_float32 += self._flower_bytes
        form, node = self.form, reply.metadata.src_node_id
        update = self._uplink.decode(node, payload, note, form.whole)
        if tuple(each.position for each in update.own) != form.beside:
            raise PayloadError("the update holds other tensors in their own type than was asked")
        with np.errstate(over="ignore"):
            model = Model(update.model_from(start.vector), update.own)
        if not is_finite(model.vector):
            raise PayloadError("the update leads to values beyond float32")
        report = self._mixing.reported(model, weight)
        reply.content[name] = self._mixing.seen(model)
        self._look_at_names(payload, update.exact)
        return report

    def _look_at_names(self, payload: bytes, exact: tuple[int, ...] = ()) -> None:
        """Warn once, of what goes up or down."""
        self._warned = self._warned or warn_of_no_names(
            self.form.whole.names, [*self.exact, *exact], payload
        )

    def _alike(self, server_round: int, replies: list[Message]) -> list[Message]:
        """Leave out replies whose metrics are not those of most: none could be aggregated."""
        usual, others = alike(replies)
        for reply in others:
            reason = "its metrics have other names or lengths than the other nodes'"
            self._course.leave_out(server_round, reply.metadata.src_node_id, reason)
        return usual
