"""The server's half of compression: a wrapper for any message-API strategy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import getLogger

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from compression.codec import Codec
from compression.flower.arrays import (
    Vector,
    flat_record,
    float32_bytes,
    layout_of,
    payload_of,
    payload_record,
    records,
    replace_arrays,
    to_arrays,
    to_vector,
)
from compression.flower.downlink import Downlink, Sent
from compression.flower.state import NOTE, Note, note_of
from compression.flower.uplink import Uplink
from compression.layout import Layout
from compression.registry import make_codec
from compression.stages import PayloadError, is_finite

PLAIN = make_codec(quantizer="float32", coder="raw")
log = getLogger("edgewire")


@dataclass
class Traffic:
    """Counters of a run. Bytes are lengths of payloads that were put into messages.

    `*_float32`: the bytes of the same content as Flower sends it without compression, one
    float32 Array a tensor.
    """

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_float32: int = 0
    downlink_bytes_float32: int = 0
    client_updates: int = 0
    failures: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dict(vars(self))


class Compressed(Strategy):
    """Wraps a message-API strategy so that models and updates travel as payloads.

    With a `downlink` codec the server sends what has changed since the version a node has, and the
    model whole only to a node that has none; without, the model whole each time (float32). `seed`
    is for a downlink that draws. With `flat=True` the nodes run a `CompressionMod` that knows the
    layout, and `evaluate_fn` and the result get the model as one flat vector; otherwise payloads
    carry the tensors' names for nodes that know nothing, and `evaluate_fn` and the result get
    named arrays. A node whose reply is an error, does not decode, is for another model, or has no
    usable weight is left out of the round, counted in `traffic.failures` and named in the log.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        downlink: Codec | None = None,
        seed: int = 0,
        flat: bool = False,
        weighted_by_key: str = "num-examples",
    ) -> None:
        self.strategy = strategy
        self.flat = flat
        self.weighted_by_key = weighted_by_key
        self.traffic = Traffic()
        self.train_metrics: MetricRecord | None = None  # the last round's, from the nodes
        self.evaluate_metrics: MetricRecord | None = None
        self._layout = Layout((), (), ())
        self._float32_bytes = 0
        self._downlink = Downlink(PLAIN, downlink, seed)
        self._uplink = Uplink()
        self._sent: dict[int, Vector] = {}  # node -> the version its update starts from

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
        self._layout = layout = layout_of(initial_arrays)
        vector = to_vector(initial_arrays)
        self._float32_bytes = float32_bytes(vector, layout)
        inner_fn = evaluate_fn
        if evaluate_fn is not None and not self.flat:

            def inner_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
                return evaluate_fn(server_round, to_arrays(to_vector(arrays), layout))

        result = super().start(
            grid, flat_record(vector), num_rounds, timeout, train_config, evaluate_config, inner_fn
        )
        if not self.flat and result.arrays:
            result.arrays = to_arrays(to_vector(result.arrays), layout)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure with the wrapped strategy; encode each distinct model once."""
        self._sent.clear()
        messages = self.strategy.configure_train(server_round, arrays, config, grid)
        return self._encoded(messages, remember=True)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `configure_train`, for evaluation at the nodes."""
        messages = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return self._encoded(messages, remember=False)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies, leave out what cannot be used, aggregate the rest."""
        decoded = []
        for reply in replies:  # one by one: a grid may hand them over while others are under way
            node = reply.metadata.src_node_id
            try:
                self._decode_reply(reply, self._sent.pop(node, None))
                decoded.append(reply)
            except PayloadError as error:
                self._fail(server_round, node, str(error))
        accepted = self._alike(server_round, decoded)
        self.traffic.client_updates += len(accepted)
        for node in self._sent:
            self._fail(server_round, node, "no reply")
        self._sent.clear()
        aggregated: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
        if accepted:
            aggregated = self.strategy.aggregate_train(server_round, accepted)
        used = accepted if aggregated[0] is not None else []
        self._uplink.applied([reply.metadata.src_node_id for reply in used])
        self.train_metrics = aggregated[1]
        return aggregated

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate with the wrapped strategy what the nodes measured; count those that failed."""
        measured = []
        for reply in replies:
            try:
                self._read_note(reply)
                self._check_weight(reply.content)
                measured.append(reply)
            except PayloadError as error:
                self._fail(server_round, reply.metadata.src_node_id, str(error))
        usable = self._alike(server_round, measured)
        self.evaluate_metrics = None
        if usable:
            self.evaluate_metrics = self.strategy.aggregate_evaluate(server_round, usable)
        return self.evaluate_metrics

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        self.strategy.summary()

    def _encoded(self, messages: Iterable[Message], remember: bool) -> list[Message]:
        """Exchange the model in each message for its payload; nodes share one encoded copy."""
        cache: dict[tuple[int, bytes | None], tuple[RecordDict, Sent]] = {}
        messages = list(messages)
        originals = [message.content for message in messages]  # kept alive: ids stay unique
        self._downlink.tidy()
        for message, content in zip(messages, originals, strict=True):
            node = message.metadata.dst_node_id
            key = id(content), self._downlink.base_of(node)
            if key not in cache:
                cache[key] = self._encode(content, key[1])
            message.content, sent = cache[key]
            self._downlink.sent(node, sent)
            note = self._uplink.note_for(node)
            if note:
                note |= sent.note
                message.content = RecordDict({**message.content, NOTE: ConfigRecord(note)})
            self.traffic.downlink_bytes += len(sent.payload)
            self.traffic.downlink_bytes_float32 += self._float32_bytes
            if remember:
                self._sent[node] = sent.received
        return messages

    def _encode(self, content: RecordDict, base: bytes | None) -> tuple[RecordDict, Sent]:
        """Return the content with a payload in it, and what was sent."""
        name, arrays = records(content, ArrayRecord)[0]
        sent = self._downlink.encode(to_vector(arrays), self._layout, base, names=not self.flat)
        encoded = replace_arrays(content, name, payload_record(sent.payload))
        if sent.note:
            encoded[NOTE] = ConfigRecord(dict(sent.note))
        return encoded, sent

    def _read_note(self, reply: Message) -> Note:
        """Take the note of compression out of a reply; raise `PayloadError` for an error reply."""
        if reply.has_error():
            raise PayloadError(reason_of(reply))
        note = note_of(reply.content)
        reply.content.pop(NOTE, None)
        self._downlink.confirm(reply.metadata.src_node_id, note)
        return note

    def _decode_reply(self, reply: Message, start: Vector | None) -> None:
        """Put the decoded model in place of the payload.

        Raises `PayloadError` for a reply that cannot be used.
        """
        note = self._read_note(reply)
        if start is None:
            raise PayloadError("a reply that was not asked for")
        if len(records(reply.content, ArrayRecord)) != 1:
            raise PayloadError("a reply must hold one ArrayRecord")
        self._check_weight(reply.content)
        found = payload_of(reply.content)
        if found is None:
            raise PayloadError("the reply holds no payload; does the ClientApp use CompressionMod?")
        name, payload = found
        self.traffic.uplink_bytes += len(payload)  # it has crossed the link, used or not
        self.traffic.uplink_bytes_float32 += self._float32_bytes
        update = self._uplink.decode(reply.metadata.src_node_id, payload, note, self._layout)
        with np.errstate(over="ignore"):
            model = update.added_to(start)
        if not is_finite(model):
            raise PayloadError("the update leads to values beyond float32")
        reply.content[name] = flat_record(model)

    def _check_weight(self, content: RecordDict) -> None:
        """Refuse what would make the wrapped strategy give up the whole round."""
        metrics = records(content, MetricRecord)
        if len(metrics) != 1:
            raise PayloadError("a reply must hold one MetricRecord")
        weight = metrics[0][1].get(self.weighted_by_key)
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise PayloadError(f"{self.weighted_by_key} must be a positive number, not {weight!r}")

    def _alike(self, server_round: int, replies: list[Message]) -> list[Message]:
        """Leave out replies whose metrics are not those of most: none could be aggregated."""
        kinds = [_kinds(reply) for reply in replies]
        usual = Counter(kinds).most_common(1)
        alike = []
        for reply, kind in zip(replies, kinds, strict=True):
            if kind == usual[0][0]:
                alike.append(reply)
            else:
                reason = "its metrics have other names or lengths than the other nodes'"
                self._fail(server_round, reply.metadata.src_node_id, reason)
        return alike

    def _fail(self, server_round: int, node: int, reason: str) -> None:
        self.traffic.failures += 1
        log.warning("round %d: node %d left out: %s", server_round, node, reason)


def reason_of(reply: Message) -> str:
    """Return the last line of an error's reason: of a traceback, what was raised."""
    lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
    return lines[-1]


def _kinds(reply: Message) -> frozenset[tuple[str, int]]:
    """Return the names of a reply's metrics, with the lengths of those that are lists (else -1)."""
    metrics = records(reply.content, MetricRecord)[0][1]
    return frozenset(
        (name, len(value) if isinstance(value, list) else -1) for name, value in metrics.items()
    )
