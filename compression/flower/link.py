"""The server's end of the link: Flower's Grid, with everything that goes over it compressed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from ..codec import Codec
from ..layout import Layout
from ..stages import PayloadError, is_finite
from .arrays import (
    Vector,
    flat_record,
    layout_of,
    payload_of,
    records,
    to_vector,
    with_content,
)
from .dialogue import Dialogue, Key, Parcel
from .form import Form, Model, converted, form_of_models, form_of_payload, form_of_updates, moved
from .grids import GridWrapper
from .method import chosen
from .notes import EXAMPLES, NOTE, ROUND, ToNode
from .traffic import (
    Course,
    Traffic,
    alike,
    below_zero,
    flower_bytes,
    warn_of_no_names,
    warn_of_variances,
    weight_of,
)
from .ways import Differences

UNUSABLE = 1  # the code of the error that stands for a reply that cannot be used
MOST_SIZE = 4  # times the model: what a reply with other tensors may hold


class Asked(NamedTuple):
    """What the server remembers of a message under way."""

    node: int
    number: int
    train: bool
    form: Form
    start: Model  # what the node's update starts from
    plain_bytes: int


class Link(GridWrapper):
    """Wraps a Grid, so that models and updates travel over it as payloads, and are counted.

    A strategy is started with it in place of the Grid, and neither knows of payloads: what the
    strategy sends are named arrays, and what it gets are models in their own types. The nodes'
    ClientApp has an `Uplink` among its mods. With a `downlink` (a codec, or a method's name) the
    server sends what has changed since the version that a node has; without, the model whole each
    time, in its own types. `exact`: patterns of names of tensors that travel in their own type.
    `seed`: of a downlink that draws.

    A reply that is an error, does not decode, is for another model or has no usable weight comes to
    the strategy as an error, is counted in `traffic.failures` and named in the log. After
    `patience` calls of `send_and_receive` in a row to train, in which there were replies and not
    one could be used, the call raises `PayloadError`.

    An update that was handed over counts as applied, unless the strategy then sends the very same
    model again: nodes whose method keeps a memory put theirs back.

    `layout`: for nodes that know it, and a model of float32 alone, which then goes as one flat
    vector on both sides; `plain_bytes`: of that model as Flower sends it.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        downlink: Codec | str | None = None,
        exact: Sequence[str] = (),
        seed: int = 0,
        patience: int = 1,
        weighted_by_key: str = EXAMPLES,
        layout: Layout | None = None,
        plain_bytes: int = 0,
        traffic: Traffic | None = None,
    ) -> None:
        if not isinstance(grid, Grid):
            raise TypeError(f"Link wraps a Grid of Flower's (flwr.serverapp.Grid), not {grid!r}")
        if not isinstance(exact, list | tuple) or not all(isinstance(e, str) for e in exact):
            raise TypeError(f"exact must be a list of patterns of names, not {exact!r}")
        super().__init__(grid)
        self.traffic = Traffic() if traffic is None else traffic
        self._differences = Differences(None if downlink is None else chosen(downlink), seed)
        self._dialogue = Dialogue(self._differences, self.traffic, layout, plain_bytes)
        self._course = Course(self.traffic, patience)
        self._exact, self._layout = list(exact), layout
        self._weighted_by_key = weighted_by_key
        self._sent: dict[str, Asked] = {}  # by the message's id
        self._newest: Vector | None = None  # the model that was sent last for training
        self._round = 0
        self._warned = self._led_below = False

    # Flower's Grid

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> list[str]:
        """Send messages; return their ids."""
        self._dialogue.receipts.applied(self._dialogue.receipts.pending)
        outgoing, sent = self._outgoing(list(messages))
        ids = list(super().push_messages(outgoing, ttl))
        self._sent |= {i: each for i, each in zip(ids, sent, strict=True) if i and each is not None}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Fetch replies."""
        return [self._incoming(reply) for reply in super().pull_messages(message_ids)]

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies; see `TimedGrid`."""
        return [self._incoming(reply) for reply in super().pull_before(message_ids, deadline)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and wait for the replies; those that cannot be used become errors."""
        messages = list(messages)
        self._settle(messages)
        outgoing, sent = self._outgoing(messages)
        train = any(each is not None and each.train for each in sent)
        if train:
            self._round += 1
            self._course.begin_round(asked=len(sent))
        found = super().send_and_receive(outgoing, timeout=timeout)
        ids = [message.metadata.message_id for message in outgoing]  # set by who has sent them
        self._sent |= {i: each for i, each in zip(ids, sent, strict=True) if each is not None}
        replies = self._alike([self._incoming(reply) for reply in found])
        missing = [self._sent.pop(i) for i in ids if i in self._sent]
        for each in missing:
            self._course.leave_out(each.number, each.node, "no reply")
        if train:
            used = sum(not reply.has_error() for reply in replies)
            self._course.end_round(self._round, used, len(replies))
        return replies

    def end(self) -> None:
        """Raise `PayloadError` if nodes were asked to train, and not one update was ever used."""
        self._course.end()

    # down

    def _settle(self, messages: list[Message]) -> None:
        """Decide what became of the updates that were handed over."""
        receipts = self._dialogue.receipts
        model = next((self._model(m.content) for m in messages if _trains(m)), None)
        if model is None or not receipts.pending:
            return
        same = self._newest is not None and np.array_equal(model[1].vector, self._newest)
        receipts.applied([] if same else receipts.pending)

    def _model(self, content: RecordDict) -> tuple[Form, Model] | None:
        """Return a content's model, its first ArrayRecord, and how its changes travel."""
        found = records(content, ArrayRecord)
        if not found or payload_of(content) is not None:
            return None
        arrays, patterns = found[0][1], tuple(self._exact)
        if self._layout is not None:
            return form_of_updates(self._layout, patterns), Model(to_vector(arrays))
        form = form_of_updates(layout_of(arrays), patterns)
        return form, form_of_models(form).model(arrays)

    def _outgoing(self, messages: list[Message]) -> tuple[list[Message], list[Asked | None]]:
        """Return messages with payloads in place of models; nodes share one encoded copy."""
        cache: dict[Key, tuple[RecordDict, Parcel]] = {}
        models: dict[int, tuple[Form, Model, int] | None] = {}
        self._differences.tidy(self._dialogue.ledger.held)
        made, sent = list[Message](), list[Asked | None]()
        for message in messages:
            content = message.content
            if id(content) not in models:
                models[id(content)] = self._looked_at(content)
            if (model := models[id(content)]) is None:
                made.append(message)
                sent.append(None)
                continue
            one, remembered = self._encoded(message, model, len(messages), cache)
            made.append(one)
            sent.append(remembered)
        return made, sent

    def _looked_at(self, content: RecordDict) -> tuple[Form, Model, int] | None:
        found = self._model(content)
        if found is None:
            return None
        plain, form = self._dialogue.plain_bytes, found[0]
        if not self._led_below:
            vector = converted(found[1], form_of_models(form), form).vector
            self._led_below = warn_of_variances(form.layout, vector)
        if self._layout is None:
            plain = flower_bytes(records(content, ArrayRecord)[0][1])
        return *found, plain

    def _encoded(
        self,
        message: Message,
        model: tuple[Form, Model, int],
        workers: int,
        cache: dict[Key, tuple[RecordDict, Parcel]],
    ) -> tuple[Message, Asked]:
        form, values, plain = model
        content, node, train = message.content, message.metadata.dst_node_id, _trains(message)
        self._differences.offer(values, form, named=self._layout is None)
        number = self._number(content)
        note = ToNode(number, workers=workers if train else None, exact=self._exact or None)
        name = records(content, ArrayRecord)[0][0]
        encoded, parcel = self._dialogue.encoded(node, content, name, note, cache)
        self._dialogue.count_down(plain)
        if not self._warned:
            self._look_at_names(form, next(iter(parcel.arrays.values())).data)
        if train:
            self._newest = values.vector
        sent = Asked(node, number, train, form, cast(Model, parcel.received), plain)
        return with_content(message, encoded), sent

    def _number(self, content: RecordDict) -> int:
        """Return the round, as the strategy says, or as it is counted here."""
        config = next(iter(records(content, ConfigRecord)), ("", ConfigRecord()))[1]
        said = config.get(ROUND)
        return said if type(said) is int and said > 0 else self._round + 1

    # up

    def _incoming(self, reply: Message) -> Message:
        """Return a reply with a model in it; an error in place of one that cannot be used."""
        sent = self._sent.pop(reply.metadata.reply_to_message_id, None)
        if sent is None:  # there was no model in its message
            return reply
        try:
            note = self._dialogue.opened(reply)
            reply.content.pop(NOTE, None)
            self._check_weight(reply.content)
            if records(reply.content, ArrayRecord):
                self._unpack(reply, note.sequence or 0, bool(note.whole), bool(note.named), sent)
            elif sent.train:
                raise PayloadError("a reply must hold one ArrayRecord")
        except PayloadError as error:
            return self._left_out(reply, sent.number, str(error))
        return reply

    def _check_weight(self, content: RecordDict) -> None:
        """Refuse a weight, where there is one, that would make a strategy give up the round."""
        if any(self._weighted_by_key in metrics for _, metrics in records(content, MetricRecord)):
            weight_of(content, self._weighted_by_key)

    def _left_out(self, reply: Message, number: int, reason: str) -> Message:
        node = reply.metadata.src_node_id
        self._course.leave_out(number, node, reason)
        self._dialogue.receipts.forget(node)
        return reply if reply.has_error() else with_content(reply, None, Error(UNUSABLE, reason))

    def _unpack(self, reply: Message, sequence: int, whole: bool, named: bool, sent: Asked) -> None:
        """Put a model in place of the payload. Raises `PayloadError` if that cannot be."""
        found = payload_of(reply.content)
        if found is None:
            raise PayloadError("the reply holds no payload; does the ClientApp use Uplink?")
        name, payload = found
        self.traffic.uplink_bytes += len(payload)  # it has crossed the link, used or not
        self.traffic.uplink_bytes_float32 += sent.plain_bytes
        node, layout = reply.metadata.src_node_id, None if named else sent.form.whole
        limit = MOST_SIZE * max(sent.form.whole.size, 1)
        update = self._dialogue.receipts.decode(node, payload, sequence, layout, limit)
        form, start = sent.form, sent.start
        if named:
            form = form_of_payload(update)
            start = start if whole else moved(start, sent.form, form)
        form = form_of_models(form) if whole else form
        if tuple(each.position for each in update.own) != form.beside:
            raise PayloadError("the update holds other tensors in their own type than was asked")
        with np.errstate(over="ignore"):
            vector = update.dense() if whole else update.model_from(start.vector)
        if not is_finite(vector):
            raise PayloadError("the update leads to values beyond float32")
        if below_zero(form.layout, vector):
            raise PayloadError("its update holds a running variance below 0")
        model = Model(vector, update.own)
        flat = self._layout is not None
        reply.content[name] = flat_record(vector) if flat else form.arrays(model)
        if not self._warned:
            self._look_at_names(form, payload, update.exact)

    def _look_at_names(self, form: Form, payload: bytes, exact: tuple[int, ...] = ()) -> None:
        """Warn once, of what goes up or down."""
        self._warned = warn_of_no_names(form.whole.names, [*self._exact, *exact], payload)

    def _alike(self, replies: list[Message]) -> list[Message]:
        """Make errors of replies that are not like most: a strategy would give up the round."""
        good = [reply for reply in replies if not reply.has_error()]
        others = {id(reply) for reply in alike(good)[1]} if good else set()
        reason = "its records or metrics have other names or lengths than the other nodes'"
        return [self._left_out(r, self._round, reason) if id(r) in others else r for r in replies]


def _trains(message: Message) -> bool:
    return message.metadata.message_type.partition(".")[0] == "train"
