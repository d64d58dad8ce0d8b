"""Replies over a link, screened: what is refused, and what is made smaller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from ..stages import PayloadError
from .arrays import FLAT, Vector, flat_record, layout_of, records, to_vector
from .form import Model, form_of_updates
from .replies import Asked
from .screen import Screen

log = getLogger("edgewire")


def screened(
    replies: Sequence[Message],
    asked: Sequence[Asked | None],
    lengths: Mapping[str, float],
    screen: Screen,
    weight: str,
) -> dict[int, str]:
    """Return which replies are refused, by `id`, and why; the others are made smaller where needed.

    `lengths`: of updates, by the id of the message that is replied to; `weight`: the metric.
    """
    trained = [
        (reply, sent, lengths[reply.metadata.reply_to_message_id])
        for reply, sent in zip(replies, asked, strict=True)
        if sent and not reply.has_error() and reply.metadata.reply_to_message_id in lengths
    ]
    if not screen.knows:
        screen.look(long for *_, long in trained)
    bad, good = dict[int, str](), []
    for reply, sent, long in trained:
        try:
            share = screen.share(sent.node, long, sent.start.vector)
        except PayloadError as error:
            bad[id(reply)] = str(error)
            continue
        if share < 1:
            _shorten(reply, sent, share)
        good.append((reply, sent))
    _weigh(good, screen, weight)
    return bad


def _shorten(reply: Message, sent: Asked, share: float) -> None:
    """Leave a share of a reply's update: of what its floats have changed since they were sent."""
    name, record = records(reply.content, ArrayRecord)[0]
    if FLAT in record:
        reply.content[name] = flat_record(_between(sent.start.vector, to_vector(record), share))
        return
    form = form_of_updates(layout_of(record), sent.form.patterns)
    model = form.model(record)
    vector = _between(sent.start.vector, model.vector, share)
    reply.content[name] = form.arrays(Model(vector, model.own))


def _between(start: Vector, end: Vector, share: float) -> Vector:
    return np.asarray(start + np.float32(share) * (end - start), dtype=np.float32)


def _weigh(replies: Iterable[tuple[Message, Asked]], screen: Screen, key: str) -> None:
    """Lower weights that are far above what is usual, and say so."""
    found = {
        sent.node: metrics
        for reply, sent in replies
        for _, metrics in records(reply.content, MetricRecord)
        if key in metrics
    }
    said = {node: cast(float, metrics[key]) for node, metrics in found.items()}
    for node, weight in screen.weigh(said).items():
        if weight < said[node]:
            found[node][key] = int(weight) if isinstance(said[node], int) else weight
            log.warning("node %d: its %s of %g counts as %g", node, key, said[node], weight)
