"""The node's half of compression: a mod for the ClientApp."""

from __future__ import annotations

from dataclasses import dataclass, field
from logging import getLogger
from typing import NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..codec import Codec
from ..layout import Layout
from ..payload import Update
from ..stages import PayloadError
from ..statistics import changes
from .answer import codec_seed, encode_answer
from .arrays import (
    Decoder,
    Vector,
    flat_record,
    payload_of,
    payload_record,
    records,
    replace_arrays,
    to_vector,
)
from .form import Form, Model, converted, form_of_payload, form_of_updates
from .privacy import clip_of, expect_clip_kept, within_clip
from .state import HEALS, NOTE, NodeState, Note, checksum, note_of

log = getLogger("edgewire")


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
    payload pass through untouched; the first that carries arrays is warned of. What the codec keeps
    unsent lives in `Context.state`; a reply that the server did not apply, as its next message
    tells, is put back into it. Methods that steer by the loss read `loss` from the reply's metrics.

    Raises `TypeError` for another codec than `make_codec` returns; `PayloadError` for a payload
    that does not decode or is relative to another version of the model than this node has, for an
    update that holds NaN or infinity, for a reply with several ArrayRecords, and for a method that
    does not keep the norm to which a mod of differential privacy has clipped. Flower turns these
    into error replies.
    """

    codec: Codec
    layout: Layout | None = None
    seed: int = 0
    _decoder: Decoder = field(init=False, repr=False)
    _version: tuple[bytes, Vector] | None = field(default=None, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise TypeError(
                f"CompressionMod needs a codec, not {self.codec!r}: "
                'CompressionMod(make_codec(quantizer="int8")), say'
            )
        self._decoder = Decoder(self.layout)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Decode, call the app, encode what it changed."""
        found = payload_of(message.content)
        if found is None:
            self._warn(message)
            return call_next(message, context)
        name, payload = found
        note = note_of(message.content)
        form, reference = self._received(self._decoder(payload), note, context)
        clip = clip_of(message.content)
        if clip is not None:
            expect_clip_kept(self.codec, form.layout)
        arrays = form.arrays(reference) if self.layout is None else flat_record(reference.vector)
        content = replace_arrays(message.content, name, arrays)
        content.pop(NOTE, None)
        inner = Message.__new__(Message)  # same metadata, other content; the sender's is shared
        inner.__dict__.update(message.__dict__, _content=content)
        reply = call_next(inner, context)
        if reply.has_error():
            return reply
        answer: Note = {"version": note["version"]} if "version" in note else {}
        trained = records(reply.content, ArrayRecord)
        if len(trained) > 1:
            raise PayloadError(
                f"the reply holds {len(trained)} ArrayRecords; one, the model, is expected"
            )
        for key, record in trained:
            model = self._model(record, form)
            delta = changes(model.vector, reference.vector, form.layout, self.codec.exact_names)
            seed = _seed(self.seed, context, _config_of(message.content))
            if clip is not None:
                delta = within_clip(self.codec, delta, form.layout, clip, seed)
            coding = _Coding(Model(delta, model.own), form.layout, seed, _loss(reply.content))
            blob, sequence = self._encode(coding, note, context)
            reply.content[key] = payload_record(blob)
            answer |= {"sequence": sequence} if sequence else {}
        if answer:
            reply.content[NOTE] = ConfigRecord(answer)
        return reply

    def _received(self, update: Update, note: Note, context: Context) -> tuple[Form, Model]:
        """Return the model that the server means, and the form in which its changes travel."""
        sent = form_of_payload(update)
        form = form_of_updates(sent.whole, tuple(cast(list[str], note.get("exact", []))))
        if "base" in note:
            if sent.beside != form.beside:
                raise PayloadError("the model's changes come in another form than is expected")
            return form, Model(self._replica(context, note, update, None), update.own)
        model = converted(Model(update.dense(), update.own), sent, form)
        if "version" in note:
            model = Model(self._replica(context, note, update, model.vector), model.own)
        return form, model

    def _model(self, record: ArrayRecord, form: Form) -> Model:
        """Return what the app has made of the model."""
        if self.layout is None:
            return form.model(record)
        return Model(to_vector(record, self.layout))

    def _encode(self, coding: _Coding, note: Note, context: Context) -> tuple[bytes, int]:
        """Return the payload, and its sequence number if it must be known whether it arrives."""
        (delta, own), layout, seed, loss = coding
        if not self.codec.memory_bytes(layout):
            return self.codec.encode(delta, layout, seed=seed, own=own), 0
        state = NodeState(context.state)
        applied = cast(int, note.get("applied", 0))
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
            loss=loss,
            workers=cast(int, note.get("workers", 0)),
            own=own,
        )
        return blob, sequence

    def _replica(
        self, context: Context, note: Note, update: Update, whole: Vector | None
    ) -> Vector:
        """Return the version that the server means: `whole`, or made from the one this node has.

        Nodes of a process that get to the same version share its array.
        """
        state = NodeState(context.state)
        base = state.replica
        if whole is None and (base is None or checksum(base) != note["base"]):
            raise PayloadError(
                f"the model is sent relative to a version that this node does not have; it {HEALS}"
            )
        name = cast(bytes, note["version"])
        if self._version is None or self._version[0] != name:
            replica = whole if whole is not None else update.model_from(cast(Vector, base))
            if checksum(replica) != name:
                raise PayloadError(
                    f"this node's model is not the server's version of it; it {HEALS}"
                )
            self._version = (name, replica)
        state.replica = self._version[1]
        state.save()
        return state.replica

    def _warn(self, message: Message) -> None:
        """Say once that nothing is compressed: the server has no other half."""
        if not self._warned and records(message.content, ArrayRecord):
            self._warned = True
            log.warning(
                "CompressionMod: the server's messages carry no payload, so nothing is compressed: "
                "wrap its strategy, Compressed(strategy), and put this mod before all others"
            )


class _Coding(NamedTuple):
    """What there is to encode."""

    model: Model
    layout: Layout
    seed: int
    loss: float | None


def _config_of(content: RecordDict) -> ConfigRecord | None:
    return next((c for name, c in records(content, ConfigRecord) if name != NOTE), None)


def _loss(content: RecordDict) -> float | None:
    loss = next((m["loss"] for _, m in records(content, MetricRecord) if "loss" in m), None)
    return float(loss) if isinstance(loss, int | float) else None
