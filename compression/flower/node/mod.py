"""A mod for a node's ClientApp; it decodes the model and encodes the app's update."""

from __future__ import annotations

import time
from logging import getLogger
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ...base import PayloadError
from ...batchnorm import changes, matches
from ...codec import Codec
from ...layout import Layout
from ...make import chosen
from ..compact_records import compact, restored, rounded
from ..headers import (
    DRIFT,
    HEADER,
    LOSS,
    SECONDS,
    DownlinkHeader,
    UplinkHeader,
    read,
    trains,
    written,
)
from ..native_tensors import (
    NATIVE,
    NONE,
    Initial,
    natives_of,
    received,
    with_natives,
    with_payload,
)
from ..node_replica import MASKED, REPLICA, Followed, NodeReplica
from ..privacy import clip_of, expect_clip_kept, is_clipped, within_clip
from ..records import (
    Vector,
    content_of,
    filled,
    flat_record,
    layout_of,
    payload_of,
    payload_record,
    records,
    to_vector,
    update_of,
    values_of,
    with_content,
)
from ..replica import Optimizer
from ..tensor_split import (
    Model,
    TensorSplit,
    converted,
    form_of_models,
    form_of_updates,
    is_float,
    moved,
)
from ..tied_weights import Ties, names_of, narrowed, still_tied, without
from ..uncompressed_warning import holds_floats, old_api
from .state import MEMORY, NUMBERS, PENDING, NodeState, take_up

log = getLogger("edgewire")
# The records that this mod puts in a node's state.
RECORDS = (REPLICA, MASKED, MEMORY, NUMBERS, PENDING)


class Change(NamedTuple):
    """The values that a reply encodes: the change of the model, or the model if `whole` is True.

    `named`: True if the payload must hold the names of its tensors.
    """

    values: Model
    form: TensorSplit
    whole: bool = False
    named: bool = False


class CompressionMod:
    """Decodes the model in a message, and compresses the app's update in the reply.

    `method`: a codec, or the name of a sparsifier, quantizer or coder with its `options`, such as
    `CompressionMod("topk", density=0.01, quantizer="int8")`. A lossless method sends the trained
    model itself, not an update, and the server gets it bit for bit. The mod compresses only the
    replies to messages for training. It passes a message without a payload to the app unchanged.
    The first such message that has arrays causes a warning. Methods that depend on the loss read
    the metric `loss` of the reply.

    `receiver`: what the server gets (`Codec.expect_receiver`), the trained models by default. Give
    "gradients" if each reply's model is one step with a gradient from the message's model. None:
    the method is not checked, because the caller has done so.

    The mod stores the codec's residual in `Context.state`, where the app does not see it. The
    server's next message says whether the node's last reply was applied. If it was not, the mod
    adds the reply back to the residual.

    With a `layout`, the app gets and returns the model as one flat vector (a `FlatArray`, without
    copies). The metric `seconds` of the reply then includes the time of the mod. Without a
    `layout`, the app gets and returns named arrays in their shapes and dtypes. An app that computes
    an update itself (a gradient, which the server subtracts) returns an `update_record`.

    `initial`: the native tensors, which are not in the flat vector, with the values that the app's
    model starts with. `native_tensors.py` describes how the app gets and returns them. `seeded`:
    the model before training, float32 (n,), if the node makes it from the run's seed. `optimizer`:
    the server's optimiser; it is needed if nodes repeat the server's steps. `contextual`: True if
    the index sets of either direction are coded by context. `masked`: apply line 7
    of CE-SGD's Algorithm 2 (`NodeReplica.masked`). `pending`: the name of a record that the app
    keeps in `Context.state` and that must match the server's state, as in SCAFFOLD; "": none. A
    change of the record is undone if the server has not applied the reply (`state.take_up`).

    Raises the errors of `make.chosen`, and `ValueError` for a method that is wrong for the
    receiver. A call raises `PayloadError` in these cases, and Flower sends the error
    in the reply:

    - the payload cannot be decoded, or is relative to a version of the model that the node lacks;
    - the update holds NaN or infinity;
    - the reply holds several models;
    - differential privacy has clipped the update, but the method may increase the update's norm.
    """

    def __init__(
        self,
        method: Codec | str,
        *,
        receiver: str | None = "models",
        layout: Layout | None = None,
        initial: Initial = NONE,
        seed: int = 0,
        optimizer: Optimizer | None = None,
        seeded: Vector | None = None,
        masked: bool = False,
        contextual: bool = False,
        pending: str = "",
        **options: Any,
    ) -> None:
        self.codec = chosen(method, **options)
        if receiver is not None:
            self.codec.expect_receiver(receiver)
        self._layout, self._seed, self._masked = layout, seed, masked
        self.secret = 0  # changes what the codec draws; a `SecureMod` sets it
        self._initial, self._pending = initial, pending
        self._follower = NodeReplica(layout, optimizer, seeded, contextual=contextual)
        self._warned = False

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Decode the model in the message, call the app with it, and encode the app's update."""
        began = time.perf_counter()
        came = content_of(message)
        asked = restored(came)
        compacted = asked is not came
        header = read(asked, DownlinkHeader)
        name = _key_of_model_update(asked, header)
        if name is None:
            self._warn(message)
            return call_next(message, context)
        asking = values_of(asked)
        arrays = asking[name]
        assert isinstance(arrays, ArrayRecord)
        base = received(arrays, header, self._initial, context.state)
        followed = self._follower.model(arrays, header, context.state)
        drift = 0.0
        if self._masked:
            vector = followed.model.vector
            vector, drift = self._follower.masked(vector, arrays, header, context.state)
            followed = followed._replace(model=Model(vector))
        clip = clip_of(asked)
        shown = followed.arrays() if self._layout is None else flat_record(followed.model.vector)
        if base.arrays:
            shown = with_natives(shown, base.all(arrays[NATIVE].data if NATIVE in arrays else None))
        content = {**asking, name: shown}
        content.pop(HEADER, None)
        training = trains(message)
        pending = self._pending if training else ""
        if pending:
            take_up(context.state, pending, _applied(header))
        passed = with_content(message, filled(RecordDict, content))
        reply, after = _unseen(passed, context, call_next, pending)
        if reply.has_error():
            return reply
        said, says = content_of(reply), None
        answered = values_of(said)
        key = _key_of_model(said, name) if training else None
        if key is None and after is not None:
            values_of(context.state)[pending] = after  # a reply without a model is never applied
        if key is not None:
            record = answered[key]
            assert isinstance(record, ArrayRecord)
            change = self._change(record, header, followed, context.state)
            payload, says = self._encoded(change, followed, header, clip, said, context, after)
            answer = payload_record(payload)
            if base.arrays and (beside := base.payload({**base.arrays, **natives_of(record)})):
                answer = with_payload(answer, NATIVE, beside)
            answered[key] = answer
        if HEADER in answered:  # else the app's record would be replaced in silence
            raise PayloadError(
                f"a reply's record {HEADER!r} is reserved for the header: give yours another name"
            )
        said_back = written(says or UplinkHeader(header.number, version=header.version))
        if values_of(said_back):
            answered[HEADER] = said_back
        seconds = time.perf_counter() - began
        # No measurement is more precise than a float16, which takes few bytes.
        self._measure(said, rounded(seconds) if compacted else seconds, drift)
        if compacted:
            reply.content = compact(said)
        return reply

    def _change(
        self, record: ArrayRecord, header: DownlinkHeader, followed: Followed, state: RecordDict
    ) -> Change:
        """Return the values to encode for a reply whose model or update is in `record`."""
        form, start = followed.form, followed.model
        if (update := update_of(record)) is not None:
            if self._follower.sends_momentum:
                update = self._follower.uplink(update, state)
            return Change(Model(update), form)
        own, named = form, False
        if self._layout is None:
            exact = tuple(header.exact or ())
            theirs = _in_types_of(layout_of(record), form.whole, exact)
            named = _tensors(theirs, self.codec.exact) != _tensors(form.whole, self.codec.exact)
            own = form_of_updates(theirs, exact) if named else form
        # A lossless codec sends the model, because a difference would be rounded. float64 tensors
        # are beside the vector, because a float32 vector would round them.
        split = form_of_models(own) if self.codec.exact else own
        if self._layout is None:
            model = split.model(record)
        else:
            model = converted(Model(to_vector(record, self._layout)), own, split)
        if self.codec.exact:
            return Change(model, split, True, named)
        if named:
            start = moved(start, form, own)
        delta = changes(model.vector, start.vector, own.layout, self.codec.exact_names)
        return Change(Model(delta, model.own), own, False, named)

    def _encoded(
        self,
        change: Change,
        followed: Followed,
        header: DownlinkHeader,
        clip: float | None,
        content: RecordDict,
        context: Context,
        after: Any,
    ) -> tuple[bytes, UplinkHeader]:
        """Encode a reply's values; return its payload and its header.

        `clip`: the clipping norm of differential privacy. `after`: the app's record (`pending`).
        """
        values, form, whole, named = change
        layout = form.layout
        node = int(context.node_config.get("partition-id", context.node_id))
        seed = codec_seed(self._seed ^ self.secret, node, header.number or 0)
        clipped = False
        if clip is not None and not whole and is_clipped(self.codec, values.vector, layout, clip):
            expect_clip_kept(self.codec, values.own, layout)
            clipped = True
            values = Model(within_clip(self.codec, values.vector, layout, clip, seed), values.own)
        numbered = after is not None or self.codec.memory_bytes(layout)
        state = NodeState(context.state) if numbered else None
        # A reply that names its tensors sends all of them.
        ties = () if named else followed.ties
        left = self._left_out(ties, form, values, state) if ties and not clipped else ()
        says = UplinkHeader(
            header.number,
            None,
            header.version,
            int(whole) or None,
            int(named) or None,
            [copy for copy, _ in ties if copy not in dict(left)] or None,
        )
        sent = without(form, left).layout if left else layout
        vector, own = narrowed(values, form, left) if left else values
        codec = self.codec.finer(header.more_bits) if header.more_bits else self.codec
        options: dict[str, Any] = {
            "seed": seed,
            # The warm-up of a codec ends with the optimiser's, also after rounds without a step.
            "number": followed.step or header.number or 0,
            "names": named,
            "own": own,
            "context": followed.context if codec.coder.contextual else None,
            "density_factor": header.density_factor or 1.0,
            "common": header.common,
        }
        if state is None:
            return codec.encode(vector, sent, **options), says
        payload = state.encoded(
            codec,
            vector,
            layout,
            applied=_applied(header),
            tied=names_of(left, form) if left else {},
            add_back=not self._follower.sends_momentum,
            loss=_loss(content),
            workers=header.workers or 0,
            **options,
        )
        if after is not None:
            values_of(context.state)[PENDING] = after
        return payload, says._replace(sequence=state.sequence)

    def _left_out(
        self, ties: Ties, form: TensorSplit, values: Model, state: NodeState | None
    ) -> Ties:
        """Return the copies of tensors that a reply leaves out (`tied_weights.py`).

        Each has the same update as its source. The reply holds a copy if a pattern of `exact_names`
        matches it or its source, or if it has a separate residual in the node's state.
        """
        names, exact = form.whole.names, self.codec.exact_names
        return tuple(
            (copy, source)
            for copy, source in still_tied(ties, form, values)
            if not matches(names[copy], exact)
            and not matches(names[source], exact)
            and (
                state is None
                or copy in form.beside
                or state.may_tie(form.layout, names[copy], names[source])
            )
        )

    def _measure(self, content: RecordDict, seconds: float, drift: float) -> None:
        for _, metrics in records(content, MetricRecord):
            measured = values_of(metrics)
            if SECONDS in measured and self._layout is not None:
                measured[SECONDS] = seconds
            if self._masked:
                measured[DRIFT] = drift

    def _warn(self, message: Message) -> None:
        """Warn once that nothing is compressed, because the server sends floats uncompressed."""
        if self._warned:
            return
        if line := old_api(message.content, "CompressionMod"):
            self._warned = True
            log.warning("%s", line)
        elif any(holds_floats(each) for _, each in records(message.content, ArrayRecord)):
            self._warned = True
            log.warning(
                "CompressionMod: the server's messages carry no payload, so nothing is compressed: "
                "start its strategy with CompressedGrid(grid), and put this mod before all others"
            )


def _applied(header: DownlinkHeader) -> int | None:
    """Return the sequence number of the node's last applied reply; None if it is unknown."""
    return None if header.undecided else header.applied or 0


def _unseen(
    message: Message, context: Context, call_next: ClientAppCallable, pending: str
) -> tuple[Message, Any]:
    """Call the app with this mod's records removed from the node's state, then restore them.

    Also restore the app's record `pending`, and return what the app has stored as this record.
    """
    state = values_of(context.state)
    ours = {key: state.pop(key) for key in RECORDS if key in state}
    if pending in state:
        ours[pending] = state[pending]
        state[pending] = filled(type(ours[pending]), {**values_of(ours[pending])})
    try:
        reply = call_next(message, context)
        return reply, values_of(context.state).get(pending) if pending else None
    finally:
        state = values_of(context.state)  # the app may have set another `state`
        if pending:
            state.pop(pending, None)
        state.update(ours)


def _key_of_model_update(content: RecordDict, header: DownlinkHeader) -> str | None:
    """Return the name of the record that holds the model; None if there is no such record.

    It is the first ArrayRecord if no payload is needed: the node has or makes the newest version.
    """
    if (found := payload_of(content)) is not None:
        return found[0]
    empty = header.rates is not None or header.base is not None
    kept = records(content, ArrayRecord) if empty else []
    return kept[0][0] if kept else None


def codec_seed(seed: int, node: int, number: int) -> int:
    """Return a codec's seed, made from the run's seed, the partition and the update's number."""
    return (seed << 96) | (node << 32) | number


def _key_of_model(content: RecordDict, name: str) -> str | None:
    """Return the name of the ArrayRecord in a reply that holds the model; None if it has none.

    It is `name`, as in the message, or else the reply's only ArrayRecord.
    """
    if ArrayRecord in type(values_of(content).get(name)).__mro__:
        return name
    keys = [key for key, _ in records(content, ArrayRecord)]
    if len(keys) > 1:
        raise PayloadError(
            f"the reply holds {len(keys)} ArrayRecords, none of them {name!r}, the model"
        )
    return next(iter(keys), None)


def _tensors(layout: Layout, types: bool) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of each tensor by name; without `types` every dtype is ""."""
    dtypes = layout.dtypes if types else ("",) * len(layout)
    return dict(zip(layout.names, zip(layout.shapes, dtypes, strict=True), strict=True))


def _in_types_of(theirs: Layout, ours: Layout, exact: tuple[str, ...]) -> Layout:
    """Return the layout of the app's tensors, with the dtypes in which the reply sends them.

    `theirs`: the tensors that the app returned. `ours`: the tensors of the message. Three kinds of
    tensors keep the app's dtype:

    - tensors that were floats in the message and are floats now;
    - new tensors;
    - integer tensors that were floats in the message and whose name matches a pattern in `exact`. A
      server's mean may have turned these integers into floats.

    All other tensors get the dtype of the message.
    """
    was = dict(zip(ours.names, ours.dtypes, strict=True))
    dtypes = tuple(
        dtype
        if name not in was or (is_float(was[name]) and (is_float(dtype) or matches(name, exact)))
        else was[name]
        for name, dtype in zip(theirs.names, theirs.dtypes, strict=True)
    )
    return Layout(theirs.names, theirs.shapes, dtypes)


def _loss(content: RecordDict) -> float | None:
    found = (values_of(metrics) for _, metrics in records(content, MetricRecord))
    loss = next((each[LOSS] for each in found if LOSS in each), None)
    return float(loss) if isinstance(loss, int | float) else None
