"""Puts decoded models in place of the payloads in replies, and errors in place of bad replies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, Error, Message, MetricRecord

from ...base import PayloadError, quiet
from ...layout import Layout
from ..headers import HEADER, KEYS, UplinkHeader
from ..message_size import measured
from ..native_tensors import distances, native_payload, natives_of, with_natives
from ..node_names import called
from ..records import (
    FLAT,
    expect_readable,
    flat_record,
    layout_of,
    payload_of,
    records,
    to_vector,
    with_content,
)
from ..tensor_split import Model, form_of_updates, statistics_of, with_statistics
from ..tied_weights import left_tied, widened_model, without
from ..uncompressed_warning import Uncompressed
from .acks import OTHER_METHOD
from .failure_policy import NOT_OPEN, FailurePolicy
from .inbox import InFlight
from .norm_screen import NormScreen, Screened, Screens, UpdateNorms, norms_of, scaled
from .reply_checks import (
    UNLIKE,
    ReplyRules,
    SentMessage,
    answered,
    expect_weight,
    expected,
    inconsistent,
    rebuilt,
)
from .session import ServerSession

ERROR_CODE = 1  # of the error that replaces an unusable reply
log = getLogger("edgewire")


@dataclass
class Answer:
    """A reply, and the data about its message; None for a message without a model.

    `norms`: what the screens check of the update in the reply; None if it holds none.
    """

    reply: Message
    sent: SentMessage | None
    norms: UpdateNorms | None = None

    @property
    def usable(self) -> bool:
        """Whether this is a reply to a message with a model, and no error."""
        return self.sent is not None and not self.reply.has_error()


class ModelReplies:
    """Makes of replies with payloads what a strategy gets: replies with models, or errors.

    `counts`: names of tensors that were not floats in an earlier model.
    """

    def __init__(
        self,
        session: ServerSession,
        failures: FailurePolicy,
        screens: Screens,
        rules: ReplyRules,
        counts: Collection[str],
        uncompressed: Uncompressed,
    ) -> None:
        self._session, self._failures, self._screens = session, failures, screens
        self._rules, self._counts = rules, counts
        self._uncompressed = uncompressed
        self.in_flight = InFlight()

    @quiet
    def take(
        self, found: Iterable[Message], server_round: int, *, together: bool
    ) -> tuple[list[Message], int]:
        """Return replies that a strategy can use, or errors; and how many updates are usable.

        `together`: True if the strategy aggregates these replies together. Then a reply that holds
        other tensors or metrics than most becomes an error (`ReplyRules.uneven`).
        """
        take = self.in_flight.take
        answers = [Answer(each, take(each.metadata.reply_to_message_id)) for each in found]
        for answer in answers:
            try:
                self._read(answer)
            except PayloadError as error:
                sent = answer.sent
                self._refuse(answer, str(error), sent.number if sent else server_round)
        usable = [each for each in answers if each.usable]
        if together and not self._rules.uneven:
            pairs = [(each.reply.content, cast(SentMessage, each.sent)) for each in usable]
            for place in inconsistent(pairs, self._rules.weighted_by_key):
                self._refuse(usable[place], UNLIKE, server_round)
        self._screen([each for each in answers if each.usable], server_round)
        if answers:
            self._uncompressed.answered()
        used = [s.node for each in answers if each.usable and (s := each.sent) and s.train]
        for node in used:
            self._failures.succeeded(node)
        return [each.reply for each in answers], len(used)

    def _refuse(self, answer: Answer, reason: str, number: int) -> None:
        """Put an error in place of a reply, count it, and log the reason for round `number`."""
        sent, reply = answer.sent, answer.reply
        node = reply.metadata.src_node_id if sent is None else sent.node
        if sent is not None:
            self._session.acks.resolve(node, applied=False)
        self._failures.leave_out(node, reason, f"round {number}: ")
        if not reply.has_error():
            answer.reply = with_content(reply, None, Error(ERROR_CODE, reason))

    def _read(self, answer: Answer) -> None:
        """Put a decoded model in place of a reply's payload; raises `PayloadError` if unusable."""
        reply, sent, traffic = answer.reply, answer.sent, self._session.traffic
        if sent is None:
            if reply.has_error():
                return  # its message held no model
            size = measured(reply.content, HEADER)
            if payload_of(reply.content) is not None:
                traffic.count_received(size, 0)
                raise PayloadError(NOT_OPEN)
            traffic.uplink_other_bytes += size[2]
            self._uncompressed.count(reply, None)
            expect_readable(reply.content)
            return
        header = self._session.opened(reply, sent.node, sent.number, sent.plain_bytes)
        content = reply.content
        content.pop(HEADER, None)
        found = payload_of(content)
        self._uncompressed.count(reply, found and found[0])
        expect_readable(content)
        if not sent.kind.startswith("query"):
            expect_weight(content, self._rules.weighted_by_key)
        if sent.train and records(content, ArrayRecord):
            if found is None:
                raise PayloadError(
                    "the reply holds no payload; does the ClientApp use CompressionMod?"
                )
            natives = native_payload(content) if sent.natives else None
            content[found[0]], answer.norms = self._decoded(found[1], natives, header, sent)
        if sent.kind in self._rules.metrics or sent.kind in self._rules.sums:
            reply.content = rebuilt(content, sent, self._rules)

    def _decoded(
        self, payload: bytes, native: bytes | None, header: UplinkHeader, sent: SentMessage
    ) -> tuple[ArrayRecord, UpdateNorms | None]:
        """Return the model that a node's payload leads to, and the norms of the update.

        `native`: the payload with native tensors.
        """
        whole, named = bool(header.whole), bool(header.named)
        uplink = self._rules.uplink
        if uplink is not None and (whole != uplink.exact or named):
            raise PayloadError(OTHER_METHOD)
        form = expected(payload, sent.form, whole=whole, named=named, counts=self._counts)
        ties = left_tied(() if named else sent.ties, header.untied)
        small = without(form, ties)
        update = self._session.decode(
            sent.node, payload, header.sequence or 0, small.whole, small.beside
        )
        model = answered(update, small, sent.form, sent.start, whole=whole)
        model = widened_model(model, form, ties)
        change = norms_of(form, model, sent.form, sent.start)
        if self._session.layout is None:
            answer = form.arrays(model)
        else:
            natives = self._session.initial.all(native) if sent.natives else {}
            answer = with_natives(flat_record(model.vector), natives)
            if change is not None and natives:
                change = change._replace(natives=distances(natives, sent.natives))
        return answer, change

    def _screen(self, answers: Sequence[Answer], server_round: int) -> None:
        """Scale down unusual updates and weights in usable replies; refuse others."""
        by_layout: dict[Layout, dict[int, UpdateNorms]] = {}
        trained = [(each, cast(SentMessage, each.sent), each.norms) for each in answers]
        for _, sent, norms in trained:
            if norms is not None:
                by_layout.setdefault(statistics_of(sent.form)[0], {})[sent.node] = norms
        self._screens.observe(by_layout)
        for answer, sent, norms in trained:
            if norms is None:
                continue
            layout, start = statistics_of(sent.form)[0], sent.start.vector
            try:
                used = self._screens.screen(sent.node, layout, norms, start)
            except PayloadError as error:
                self._refuse(answer, str(error), server_round)
                continue
            if used.limits(norms):
                name, record = records(answer.reply.content, ArrayRecord)[0]
                answer.reply.content[name] = _shortened(record, sent, used)
        weight, screen = self._rules.weighted_by_key, self._screens.vectors
        _weigh([each for each in answers if each.norms and each.usable], screen, weight)
        evaluated = [e for e in answers if cast(SentMessage, e.sent).kind.startswith("evaluate")]
        _weigh(evaluated, screen, weight, "evaluations")
        summed = [e for e in evaluated if cast(SentMessage, e.sent).kind in self._rules.sums]
        _weigh(summed, screen, weight, "sums", {weight, *self._rules.bounds})


def _shortened(record: ArrayRecord, sent: SentMessage, used: Screened) -> ArrayRecord:
    """Return a reply's model with what may be used of its update in place of the update."""
    form = sent.form
    flat = FLAT in record
    if flat:
        model = Model(to_vector(record))
    else:
        form = form_of_updates(layout_of(record), form.patterns)
        model = form.model(record)
    vector, share = model.vector, used.share
    if share < 1:
        start = sent.start.vector
        vector = np.asarray(start + np.float32(share) * (vector - start), dtype=np.float32)
    before = sent.natives if flat else {each.name: each.array for each in sent.start.own}
    after = natives_of(record) if flat else {each.name: each.array for each in model.own}
    after = scaled(after, before, used.natives)
    own = tuple(each._replace(array=after[each.name]) for each in model.own)
    model = with_statistics(form, Model(vector, own), used.statistics)
    return with_natives(flat_record(model.vector), after) if flat else form.arrays(model)


def _weigh(
    answers: Iterable[Answer],
    screen: NormScreen,
    key: str,
    kind: str = "weights",
    others: Collection[str] = (),
) -> None:
    """Limit the weights in replies to a multiple of the usual weight, and log each change.

    With `others`, a weight is multiplied by the magnitude of the means that `others` does not name.
    """
    found = {
        cast(SentMessage, each.sent).node: metrics
        for each in answers
        for _, metrics in records(each.reply.content, MetricRecord)
        if key in metrics
    }
    said = {node: cast(float, metrics[key]) for node, metrics in found.items()}
    sizes = dict.fromkeys(found, 1.0)
    for node, metrics in found.items() if others else ():
        names = (name for name in metrics if name not in others and not name.endswith(KEYS))
        means = (np.ravel(metrics[name]).tolist() for name in names)
        sizes[node] = sum(abs(value) for mean in means for value in mean)
    products = {node: size * said[node] for node, size in sizes.items() if size}
    for node, weight in screen.cap_weights(products, kind=kind).items():
        if weight != products[node]:
            used = weight / sizes[node]
            found[node][key] = int(used) if isinstance(said[node], int) and not others else used
            if not screen.options.equal:
                log.warning("%s: its %s of %g counts as %g", called(node), key, said[node], used)
