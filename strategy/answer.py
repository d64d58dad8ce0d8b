"""What a node's answer holds, checked before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from flwr.app import Message, MetricRecord

from compression import PayloadError
from compression.flower import Traffic, payload_of, reason_of
from compression.flower.arrays import records
from compression.flower.state import Note, note_of

MOST = 2**63  # samples or weight of a node


class Answer(NamedTuple):
    """A payload, what its note says, and the node's metrics."""

    payload: bytes
    note: Note
    metrics: MetricRecord


def open_answer(
    reply: Message, traffic: Traffic, float32_bytes: int, numbers: Iterable[str] = ()
) -> Answer:
    """Return what an answer holds, its bytes counted: they have crossed the link, used or not.

    `float32_bytes`: what Flower would have sent; `numbers`: metrics that must be finite. Raises
    `PayloadError`, with the reason, for an error or for anything that cannot be used.
    """
    if reply.has_error():
        raise PayloadError(reason_of(reply))
    content = reply.content
    found, metrics = payload_of(content), next(iter(records(content, MetricRecord)), None)
    if found is None or metrics is None:
        raise PayloadError("an answer must hold a payload and a MetricRecord")
    payload = found[1]
    traffic.uplink_bytes += len(payload)
    traffic.uplink_bytes_float32 += float32_bytes
    if not 0 < number(metrics[1], "num-examples") < MOST:
        raise PayloadError("its number of samples must be above 0, below 2^63")
    for name in numbers:
        number(metrics[1], name)
    return Answer(payload, note_of(content), metrics[1])


def number(metrics: MetricRecord, name: str) -> float:
    """Return a metric. Raises `PayloadError` if it is no finite number."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise PayloadError(f"its metric {name!r} must be a finite number, not {value!r}")
    return float(value)
