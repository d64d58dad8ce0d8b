"""The server's end of the dialogue: what nodes are told, what they answer, what was counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from ..layout import Layout
from ..payload import Update
from ..stages import PayloadError
from .arrays import filled, payload_of, records
from .ledger import Ledger, LedgerState, Parcel, Receipts, ReceiptsState, Way
from .notes import EXAMPLES, MOST, NOTE, ToNode, ToServer, read, written
from .traffic import Traffic, reason_of

Key = tuple[int, int | None, int]  # a content's id, the node's version, its last applied answer


class Received(NamedTuple):
    """A node's update, sparse as it was sent, and what the node measured."""

    update: Update
    metrics: MetricRecord


@dataclass
class DialogueState:
    """What the server knows of its nodes."""

    ledger: LedgerState = field(default_factory=LedgerState)
    receipts: ReceiptsState = field(default_factory=ReceiptsState)


class Dialogue:
    """Brings nodes to the newest model, tells them what was applied, and reads their answers.

    `layout`: of the model, where all nodes have the same. `plain_bytes`: of the model as Flower
    sends it without compression.
    """

    def __init__(
        self,
        way: Way,
        traffic: Traffic,
        layout: Layout | None = None,
        plain_bytes: int = 0,
        state: DialogueState | None = None,
    ) -> None:
        state = DialogueState() if state is None else state
        self.ledger = Ledger(way, state.ledger)
        self.receipts = Receipts(state.receipts)
        self.traffic = traffic
        self.layout, self.plain_bytes = layout, plain_bytes

    def messages(
        self, nodes: Iterable[int], kind: str, orders: Mapping[str, Any], note: ToNode
    ) -> list[tuple[Message, Parcel]]:
        """Return a message of type `kind` for each node, with the newest model, and its parcel.

        `orders`: what the ClientApp is told. Nodes alike share one content.
        """
        config = filled(ConfigRecord(), orders)
        content = filled(RecordDict(), {"arrays": None, "config": config})
        cache: dict[Key, tuple[RecordDict, Parcel]] = {}
        made = []
        for node in nodes:
            encoded, parcel = self.encoded(node, content, "arrays", note, cache)
            self.count_down(self.plain_bytes)
            made.append((Message(encoded, node, kind, group_id=str(note.number)), parcel))
        return made

    def encoded(
        self,
        node: int,
        content: RecordDict,
        name: str,
        note: ToNode,
        cache: dict[Key, tuple[RecordDict, Parcel]],
    ) -> tuple[RecordDict, Parcel]:
        """Return a content for a node, its record `name` a parcel, and the parcel: it is sent."""
        base, applied = self.ledger.base_of(node), self.receipts.last_applied(node)
        key = id(content), base, applied
        if key not in cache:
            parcel = next((p for k, (_, p) in cache.items() if k[:2] == key[:2]), None)
            parcel = parcel or self.ledger.way.parcel(base)
            told = written(replace(note, applied=applied or None, **parcel.note))
            shared = {k: parcel.arrays if k == name else v for k, v in content.items()}
            cache[key] = filled(RecordDict(), {**shared, NOTE: told}), parcel
        made = cache[key]
        self.ledger.send(node, made[1])
        self.traffic.downlink_bytes += made[1].size
        return made

    def count_down(self, plain_bytes: int) -> None:
        """Count what Flower would have sent in place of a message's payloads."""
        self.traffic.downlink_bytes_float32 += plain_bytes

    def opened(self, reply: Message) -> ToServer:
        """Return what an answer says beside arrays. Raises `PayloadError` for an error reply."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.ledger.lose(node)
            raise PayloadError(reason_of(reply))
        note = read(reply.content, ToServer)
        self.ledger.confirm(node, note.version)
        return note

    def read(self, reply: Message, measured: Iterable[str] = ()) -> Received:
        """Return an answer's update; whether it is applied is for `receipts.applied` to say.

        Its bytes are counted: they have crossed the link, used or not. `measured`: metrics that
        must be finite. Raises `PayloadError`, with the reason, for what cannot be used.
        """
        note, content = self.opened(reply), reply.content
        found, metrics = payload_of(content), next(iter(records(content, MetricRecord)), None)
        if found is None or metrics is None:
            raise PayloadError("an answer must hold a payload and a MetricRecord")
        payload = found[1]
        self.traffic.uplink_bytes += len(payload)
        self.traffic.uplink_bytes_float32 += self.plain_bytes
        if note.whole:
            raise PayloadError("the answer holds a model; an update is asked for")
        if not 0 < number(metrics[1], EXAMPLES) < 2 * MOST:
            raise PayloadError("its number of samples must be above 0, below 2^63")
        for name in measured:
            number(metrics[1], name)
        node, sequence = reply.metadata.src_node_id, note.sequence or 0
        return Received(self.receipts.decode(node, payload, sequence, self.layout), metrics[1])


def number(metrics: Mapping[str, Any], name: str) -> float:
    """Return a metric. Raises `PayloadError` if it is no finite number."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise PayloadError(f"its metric {name!r} must be a finite number, not {value!r}")
    return float(value)
