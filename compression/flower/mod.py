"""The node's half of compression: a mod for the ClientApp."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from compression.flower.arrays import (
    Vector,
    flat_record,
    payload_of,
    payload_record,
    records,
    replace_arrays,
    to_arrays,
    to_vector,
)
from compression.layout import Layout
from compression.payload import Codec, decode


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
