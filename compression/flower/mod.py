"""The node's half of compression: a mod for the ClientApp."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp.typing import ClientAppCallable

from compression.codec import Codec
from compression.flower.answer import codec_seed, encode_answer
from compression.flower.arrays import (
    Decoder,
    Vector,
    flat_record,
    payload_of,
    payload_record,
    records,
    replace_arrays,
    to_arrays,
    to_vector,
)
from compression.flower.state import NOTE, NodeState, Note, checksum, note_of
from compression.layout import Layout
from compression.payload import Update
from compression.stages import PayloadError


def _seed(seed: int, context: Context, config: ConfigRecord | None) -> int:
    """Return the codec's seed for this node and round."""
    node = int(context.node_config.get("partition-id", context.node_id))
    server_round = cast(int, config["server-round"]) if config and "server-round" in config else 0
    return codec_seed(seed, node, server_round)


@dataclass
class CompressionMod:
    """The node's half: decodes what comes, answers with the compressed delta.

    With a `layout` the app gets and returns the model as one flat vector (`FlatArray`, zero
    copies); without, as named arrays in their own shapes and dtypes. Messages that carry no
    payload pass through untouched. What the codec keeps unsent lives in `Context.state`; a reply
    that the server did not apply, as its next message tells, is put back into it. Methods that
    steer by the loss read `loss` from the reply's metrics. Raises `PayloadError` for a payload that
    does not decode or is relative to another version of the model than this node has, and for an
    update that holds NaN or infinity; Flower turns that into an error reply.
    """

    codec: Codec
    layout: Layout | None = None
    seed: int = 0
    _decoder: Decoder = field(init=False, repr=False)
    _version: tuple[bytes, Vector] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._decoder = Decoder(self.layout)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Decode, call the app, encode what it changed."""
        found = payload_of(message.content)
        if found is None:
            return call_next(message, context)
        name, payload = found
        note = note_of(message.content)
        update = self._decoder(payload)
        layout = update.layout
        reference = self._replica(context, note, update) if "version" in note else update.dense()
        arrays = to_arrays(reference, layout) if self.layout is None else flat_record(reference)
        content = replace_arrays(message.content, name, arrays)
        content.pop(NOTE, None)
        inner = Message.__new__(Message)  # same metadata, other content; the sender's is shared
        inner.__dict__.update(message.__dict__, _content=content)
        reply = call_next(inner, context)
        if reply.has_error():
            return reply
        answer: Note = {"version": note["version"]} if "version" in note else {}
        for key, record in records(reply.content, ArrayRecord):
            delta = to_vector(record, layout) - reference
            blob, sequence = self._encode(delta, layout, note, message, reply, context)
            reply.content[key] = payload_record(blob)
            answer |= {"sequence": sequence} if sequence else {}
        if answer:
            reply.content[NOTE] = ConfigRecord(answer)
        return reply

    def _encode(
        self,
        delta: Vector,
        layout: Layout,
        note: Note,
        message: Message,
        reply: Message,
        context: Context,
    ) -> tuple[bytes, int]:
        """Return the payload, and its sequence number if it must be known whether it arrives."""
        config = next((c for n, c in records(message.content, ConfigRecord) if n != NOTE), None)
        seed = _seed(self.seed, context, config)
        if not self.codec.memory_bytes(layout):
            return self.codec.encode(delta, layout, seed=seed), 0
        state = NodeState(context.state)
        applied = cast(int, note.get("applied", 0))
        loss = next(
            (m["loss"] for _, m in records(reply.content, MetricRecord) if "loss" in m), None
        )
        # A node that lost its state goes on counting where the server is.
        sequence = max(applied, state.sequence) + 1
        blob = encode_answer(
            self.codec,
            delta,
            layout,
            state,
            applied=applied,
            sequence=sequence,
            seed=seed,
            loss=float(loss) if isinstance(loss, int | float) else None,
        )
        return blob, sequence

    def _replica(self, context: Context, note: Note, update: Update) -> Vector:
        """Return the version that the server means, made from the one this node has if need be.

        Nodes of a process that get to the same version share its array.
        """
        state = NodeState(context.state)
        if "base" in note and (state.replica is None or checksum(state.replica) != note["base"]):
            raise PayloadError(
                "the model is sent relative to a version that this node does not have; "
                "the server will send it whole next time"
            )
        name = cast(bytes, note["version"])
        if self._version is None or self._version[0] != name:
            base = state.replica if "base" in note else None
            replica = update.dense() if base is None else update.added_to(base)
            if checksum(replica) != name:
                raise PayloadError("this node's model is not the server's version of it")
            self._version = (name, replica)
        state.replica = self._version[1]
        state.save()
        return state.replica
