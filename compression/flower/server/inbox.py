"""A server's inbox: opens, decodes, checks and screens the nodes' updates of one flat model.

It counts each reply that it refuses, and logs the reason. `ModelReplies` makes models of replies
for strategies that see only messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from flwr.app import Message, MetricRecord
from flwr.common.constant import ErrorCode

from ...base import Indices, PayloadError, Vector
from ..headers import EXAMPLES, STEPS, number
from ..native_tensors import Arrays, distances, native_payload
from ..records import content_of, payload_of, records, values_of
from .norm_screen import Screens, UpdateNorms, scaled
from .reply_checks import SentMessage, usable_weight
from .session import ServerSession
from .statistics_screen import StatisticsSplit, norm_of


class ReceivedUpdate(NamedTuple):
    """A node's update, divided into trained entries and BatchNorm's statistics.

    `every`: the indices of the whole update, with those of the statistics (None: all). `indices`:
    the indices of the trained entries. `values`: the values there, float32 (k,). `statistics`:
    BatchNorm's statistics, float32 (s,). `weight`: the node's weight in the mean. `natives`: the
    native tensors by name; `start`: those of the server.
    """

    every: Indices | None
    indices: Indices | None
    values: Vector
    statistics: Vector
    metrics: MetricRecord
    weight: float
    natives: Arrays
    start: Arrays
    norms: UpdateNorms


class Inbox:
    """Reads the nodes' updates of one flat model, and limits unusual ones.

    `split`: divides an update into trained entries and BatchNorm's statistics. `measured`: names of
    metrics that each reply must hold as finite numbers. `weighted_by_key`: the metric with a node's
    weight; None: equal weights.
    """

    def __init__(
        self,
        session: ServerSession,
        split: StatisticsSplit,
        screens: Screens,
        measured: Sequence[str],
        weighted_by_key: str | None = None,
    ) -> None:
        self._session, self._split, self.screens = session, split, screens
        self._measured, self._weight = measured, weighted_by_key

    def read(
        self, node: int, message: int, reply: Message | None, start: Vector, natives: Arrays
    ) -> ReceivedUpdate:
        """Decode a node's reply to its message with the number `message`.

        The update is pending until the session's `acks.applied` is called. `start`: BatchNorm's
        statistics in the message, (s,). `natives`: the server's native tensors. Raises
        `PayloadError`, with the reason, for a reply that cannot be used.
        """
        if reply is None:
            raise PayloadError("no reply in time")
        session = self._session
        header = session.opened(reply, node, message, session.plain_bytes)
        content = content_of(reply)
        found, metrics = payload_of(content), next(iter(records(content, MetricRecord)), None)
        if found is None or metrics is None:
            raise PayloadError("a reply must hold a payload and a MetricRecord")
        if header.whole:
            raise PayloadError("the reply holds a model; an update is asked for")
        said = values_of(metrics[1])
        usable_weight(said.get(EXAMPLES), EXAMPLES)
        for name in self._measured:
            number(said, name)
        update = session.decode_flat(node, found[1], header)
        reported = session.initial.all(native_payload(content)) if session.initial.arrays else {}
        weight = usable_weight(said.get(self._weight), self._weight) if self._weight else 1.0
        indices, values, statistics = self._split.split_update(update)
        far = distances(reported, natives) if natives else None
        norms = UpdateNorms(norm_of(values), far, statistics, start)
        parts = indices, values, statistics
        return ReceivedUpdate(update.indices, *parts, metrics[1], weight, reported, natives, norms)

    def observe(self, found: Mapping[int, ReceivedUpdate]) -> None:
        """Compute from a round's updates, by node, what is usual, until `NormScreen.knows`."""
        norms = {node: each.norms for node, each in found.items()}
        self.screens.observe({self._split.layout: norms})
        self._capped({node: each.weight for node, each in found.items()})

    def _capped(self, weights: dict[int, float]) -> dict[int, float]:
        return self.screens.vectors.cap_weights(weights, steps=self._weight == STEPS)

    def accept(
        self, node: int, found: ReceivedUpdate, model: Vector, rate: float
    ) -> ReceivedUpdate:
        """Return an update within the screens' limits; raises `PayloadError` if it is refused.

        `model`: the server's model. `rate`: the rate at which the server applies the update.
        """
        used = self.screens.screen(node, self._split.layout, found.norms, model, rate)
        weight = found.weight
        if self._weight:
            weight = self._capped({node: weight})[node]
        if weight == found.weight and not used.limits(found.norms):
            return found
        values = found.values if used.share == 1 else found.values * np.float32(used.share)
        natives = scaled(found.natives, found.start, used.natives)
        statistics = used.statistics
        return found._replace(values=values, statistics=statistics, natives=natives, weight=weight)


@dataclass
class InFlight:
    """The messages with a model for which the server waits for a reply.

    `sent`: by the message's id. `owing`: by node, the id of its last message for training.
    """

    sent: dict[str, SentMessage] = field(default_factory=dict)
    owing: dict[int, str] = field(default_factory=dict)

    def add(self, messages: Iterable[Message], sent: Iterable[SentMessage | None]) -> list[str]:
        """Store data about sent messages; return their ids, also of those to absent nodes."""
        ids = [message.metadata.message_id for message in messages]
        added = {i: each for i, each in zip(ids, sent, strict=True) if each is not None}
        self.sent |= added
        for message_id, each in added.items():
            if each.train:
                self.owing[each.node] = message_id
        return ids

    def owes(self, node: int) -> bool:
        """Return whether the server waits for a node's reply to a message for training.

        A node replies in the order of the messages. So a message is lost if it was sent before the
        message that the node last replied to.
        """
        return node in self.owing

    def take(self, message_id: str) -> SentMessage | None:
        """Return the data of a message, and delete it; None if it is unknown."""
        found = self.sent.pop(message_id, None)
        if found is not None and self.owing.get(found.node) == message_id:
            del self.owing[found.node]
        return found


NOT_REACHED = (  # errors that the grid makes if it cannot reach a node
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def count_received(replies: Sequence[Message]) -> int:
    """Return how many replies come from nodes, without the errors that the grid makes."""
    return sum(not r.has_error() or r.error.code not in NOT_REACHED for r in replies)
