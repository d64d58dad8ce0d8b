"""Flower's side of compression: a mod for the ClientApp and a wrapper for any Strategy.

`Compressed(FedAvg(...))` sends the model as one payload and hands the wrapped strategy what the
nodes' compressed deltas decode to; `CompressionMod` does the reverse at the node. Neither the
strategy nor the ClientApp sees a payload. Works with every message-API strategy that averages,
sorts or measures arrays, since these treat a model as one long vector.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from io import BytesIO
from logging import getLogger
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from compression.layout import Layout
from compression.payload import Codec, PayloadError, decode
from compression.registry import make_codec
from compression.stages import is_finite

Vector = NDArray[np.float32]
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)
STYPE = "edgewire.payload"  # an Array of this kind holds a payload, not an .npy file
FLAT = "flat"  # the name of the one Array of a model handed over as a vector
PLAIN = make_codec(quantizer="float32", coder="raw")
log = getLogger("edgewire")


class FlatArray(Array):
    """An `Array` over a float32 vector (n,) whose .npy bytes are made only when asked for.

    Inside one process nobody asks: `numpy()` copies the vector, as `Array.numpy()` makes a
    fresh array, and `vector` is the vector itself (treat it as read-only).
    """

    def __init__(self, vector: Vector) -> None:
        self.__dict__.update(
            dtype="float32", shape=vector.shape, stype="numpy.ndarray", vector=vector
        )

    def __getattr__(self, name: str) -> Any:
        if name != "data":
            raise AttributeError(name)
        buffer = BytesIO()
        np.save(buffer, self.vector, allow_pickle=False)
        return buffer.getvalue()

    def numpy(self) -> Vector:
        """Return a copy of the vector, float32 (n,)."""
        copy: Vector = self.vector.copy()
        return copy

    def deflate(self) -> bytes:
        """Return the bytes a plain `Array` would travel as."""
        return bytes(Array(self.vector).deflate())

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatArray, (self.vector,)


def flat_record(vector: Vector) -> ArrayRecord:
    """Return an ArrayRecord of one Array that holds the whole model, float32 (n,)."""
    record = ArrayRecord()
    record[FLAT] = FlatArray(vector)
    return record


def layout_of(arrays: ArrayRecord) -> Layout:
    """Return the layout of an ArrayRecord's arrays, in the record's order."""
    return Layout(
        tuple(arrays),
        tuple(tuple(a.shape) for a in arrays.values()),
        tuple(a.dtype for a in arrays.values()),
    )


def to_vector(arrays: ArrayRecord, layout: Layout | None = None) -> Vector:
    """Return all arrays end to end, float32 (n,); no copy if there is one flat Array already.

    Raises `PayloadError` if names or sizes are not those of `layout`.
    """
    if len(arrays) == 1 and isinstance(only := next(iter(arrays.values())), FlatArray):
        return only.vector  # type: ignore[no-any-return]
    names = layout.names if layout is not None else tuple(arrays)
    if set(names) != set(arrays):
        raise PayloadError(f"arrays do not match the model: got {sorted(arrays)}")
    parts = [np.asarray(arrays[name].numpy(), dtype=np.float32).reshape(-1) for name in names]
    vector: Vector = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if layout is not None and vector.size != layout.size:
        raise PayloadError(f"arrays hold {vector.size} values, the model has {layout.size}")
    return vector


def to_arrays(vector: Vector, layout: Layout) -> ArrayRecord:
    """Return one named Array a tensor, each in its own dtype (integers rounded)."""
    record, offsets = ArrayRecord(), layout.offsets
    for i, (name, shape, dtype) in enumerate(
        zip(layout.names, layout.shapes, layout.dtypes, strict=True)
    ):
        values = vector[offsets[i] : offsets[i + 1]].reshape(shape)
        if not np.issubdtype(dtype, np.floating):
            values = np.rint(values)
        record[name] = Array(np.asarray(values, dtype=dtype))  # rint makes a scalar of shape ()
    return record


def payload_record(payload: bytes) -> ArrayRecord:
    """Return an ArrayRecord of one Array that holds a payload."""
    record = ArrayRecord()
    record["payload"] = Array("uint8", (len(payload),), STYPE, payload)
    return record


def payload_of(content: RecordDict) -> tuple[str, bytes] | None:
    """Return the name of the record that holds a payload, and the payload, if there is one."""
    for name, record in records(content, ArrayRecord):
        for array in record.values():
            if array.stype == STYPE:
                return name, array.data
    return None


def records(content: RecordDict, kind: type[Record]) -> list[tuple[str, Record]]:
    """Return the records of one kind with their names.

    RecordDict's own `array_records` and its like build a checked dict at every access, 40 µs each.
    """
    return [(name, record) for name, record in content.items() if isinstance(record, kind)]


def _usual_metrics(replies: list[Message]) -> frozenset[str]:
    """Return the metric names that most replies have: one odd node must not refuse all others."""
    names = Counter(frozenset(_metrics(reply)) for reply in replies)
    return max(names, key=names.__getitem__, default=frozenset())


def _reason(reply: Message) -> str:
    """Return the last line of an error's reason: of a traceback, what was raised."""
    lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
    return lines[-1]


def _metrics(reply: Message) -> MetricRecord:
    return records(reply.content, MetricRecord)[0][1]


def replace_arrays(content: RecordDict, name: str, arrays: ArrayRecord) -> RecordDict:
    """Return a RecordDict with one ArrayRecord exchanged; the others are shared, not copied."""
    return RecordDict({k: arrays if k == name else v for k, v in content.items()})


def _seed(seed: int, context: Context, config: ConfigRecord | None) -> int:
    """Mix run seed, node and round into one integer for stochastic codecs."""
    node = int(context.node_config.get("partition-id", context.node_id))
    server_round = cast(int, config["server-round"]) if config and "server-round" in config else 0
    return (seed << 96) | (node << 32) | server_round


@dataclass
class CompressionMod:
    """The node's half: decodes what comes, answers with the compressed delta.

    With a `layout` the app gets and returns the model as one flat vector (`FlatArray`, zero
    copies); without, as named arrays in their own shapes and dtypes. Messages that carry no
    payload pass through untouched. Raises `PayloadError` for a payload that does not decode and
    for an update that holds NaN or infinity; Flower turns that into an error reply.
    """

    codec: Codec
    layout: Layout | None = None
    seed: int = 0
    _last: tuple[bytes, Vector, Layout] | None = field(default=None, init=False, repr=False)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Decode, call the app, encode what it changed."""
        found = payload_of(message.content)
        if found is None:
            return call_next(message, context)
        name, payload = found
        reference, layout = self._decode(payload)
        arrays = to_arrays(reference, layout) if self.layout is None else flat_record(reference)
        content = replace_arrays(message.content, name, arrays)
        inner = Message.__new__(Message)  # same metadata, other content; the sender's is shared
        inner.__dict__.update(message.__dict__, _content=content)
        reply = call_next(inner, context)
        if reply.has_error():
            return reply
        for key, record in records(reply.content, ArrayRecord):
            delta = to_vector(record, layout) - reference
            config = next((c for _, c in records(message.content, ConfigRecord)), None)
            blob = self.codec.encode(delta, layout, seed=_seed(self.seed, context, config))
            reply.content[key] = payload_record(blob)
        return reply

    def _decode(self, payload: bytes) -> tuple[Vector, Layout]:
        """Decode, or return what the very same bytes decoded to: nodes of a process share them."""
        if self._last is None or self._last[0] is not payload:
            self._last = (payload, *decode(payload, self.layout))
        return self._last[1:]


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
        return asdict(self)


class Compressed(Strategy):
    """Wraps a message-API strategy so that models and updates travel as payloads.

    `downlink` encodes what the server sends (default: float32 as it is). With `flat=True` the
    nodes run a `CompressionMod` that knows the layout, and `evaluate_fn` and the result get the
    model as one flat vector; otherwise payloads carry the tensors' names for nodes that know
    nothing, and `evaluate_fn` and the result get named arrays. A node whose reply is an error,
    does not decode, is for another model, or has no usable weight is left out of the round,
    counted in `traffic.failures` and named in the log.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        downlink: Codec = PLAIN,
        flat: bool = False,
        weighted_by_key: str = "num-examples",
    ) -> None:
        self.strategy = strategy
        self.downlink = downlink
        self.flat = flat
        self.weighted_by_key = weighted_by_key
        self.traffic = Traffic()
        self.train_metrics: MetricRecord | None = None  # the last round's, from the nodes
        self.evaluate_metrics: MetricRecord | None = None
        self._layout = Layout((), (), ())
        self._float32_bytes = 0
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
        # What the model costs as Flower sends it is measured on the real Arrays.
        self._float32_bytes = sum(
            len(Array(part).data)
            for part in np.split(vector, layout.offsets[1:-1])  # one Array a tensor
        )
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
        accepted, names = [], _usual_metrics(decoded)
        for reply in decoded:
            if names == set(_metrics(reply)):
                accepted.append(reply)
                self.traffic.client_updates += 1
            else:
                reason = "the reply's metrics have other names than the other nodes'"
                self._fail(server_round, reply.metadata.src_node_id, reason)
        for node in self._sent:
            self._fail(server_round, node, "no reply")
        self._sent.clear()
        aggregated: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
        if accepted:
            aggregated = self.strategy.aggregate_train(server_round, accepted)
        self.train_metrics = aggregated[1]
        return aggregated

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate with the wrapped strategy what the nodes measured; count those that failed."""
        usable = []
        for reply in replies:
            if reply.has_error():
                self._fail(server_round, reply.metadata.src_node_id, _reason(reply))
            else:
                usable.append(reply)
        self.evaluate_metrics = None
        if usable:
            self.evaluate_metrics = self.strategy.aggregate_evaluate(server_round, usable)
        return self.evaluate_metrics

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        self.strategy.summary()

    def _encoded(self, messages: Iterable[Message], remember: bool) -> list[Message]:
        """Exchange the model in each message for its payload; nodes share one encoded copy."""
        cache: dict[int, tuple[RecordDict, Vector, int]] = {}
        messages = list(messages)
        originals = [message.content for message in messages]  # kept alive: ids stay unique
        for message, content in zip(messages, originals, strict=True):
            if id(content) not in cache:
                cache[id(content)] = self._encode(content)
            message.content, vector, size = cache[id(content)]
            self.traffic.downlink_bytes += size
            self.traffic.downlink_bytes_float32 += self._float32_bytes
            if remember:
                self._sent[message.metadata.dst_node_id] = vector
        return messages

    def _encode(self, content: RecordDict) -> tuple[RecordDict, Vector, int]:
        """Return the content with a payload in it, the vector that it decodes to, its bytes."""
        name, arrays = records(content, ArrayRecord)[0]
        payload = self.downlink.encode(to_vector(arrays), self._layout, names=not self.flat)
        received, _ = decode(payload, self._layout)
        return replace_arrays(content, name, payload_record(payload)), received, len(payload)

    def _decode_reply(self, reply: Message, start: Vector | None) -> None:
        """Put the decoded model in place of the payload.

        Raises `PayloadError` for a reply that cannot be used.
        """
        if reply.has_error():
            raise PayloadError(_reason(reply))
        if start is None:
            raise PayloadError("a reply that was not asked for")
        self._check_weight(reply.content)
        found = payload_of(reply.content)
        if found is None:
            raise PayloadError("the reply holds no payload; does the ClientApp use CompressionMod?")
        name, payload = found
        self.traffic.uplink_bytes += len(payload)  # it has crossed the link, used or not
        self.traffic.uplink_bytes_float32 += self._float32_bytes
        delta, _ = decode(payload, self._layout)
        with np.errstate(over="ignore"):
            model = delta + start
        if not is_finite(model):
            raise PayloadError("the update leads to values beyond float32")
        reply.content[name] = flat_record(model)

    def _check_weight(self, content: RecordDict) -> None:
        """Refuse what would make the wrapped strategy give up the whole round."""
        metrics = records(content, MetricRecord)
        if len(metrics) != 1 or len(records(content, ArrayRecord)) != 1:
            raise PayloadError("a reply must hold one ArrayRecord and one MetricRecord")
        weight = metrics[0][1].get(self.weighted_by_key)
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise PayloadError(f"{self.weighted_by_key} must be a positive number, not {weight!r}")

    def _fail(self, server_round: int, node: int, reason: str) -> None:
        self.traffic.failures += 1
        log.warning("round %d: node %d left out: %s", server_round, node, reason)
