"""Bytes of a cut model's run: of every link, each way, and of what they were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from compression import PayloadError, describe
from compression.flower import Traffic
from compression.flower.batch_tensors import GRADIENTS
from compression.flower.headers import NOTE, UplinkHeader, read
from compression.flower.message_size import Size, measured
from compression.flower.records import records
from compression.flower.traffic import reason_of

Plain = Mapping[str, list[tuple[tuple[int, ...], str]]]  # name -> shapes and types of its tensors
LONGEST = 1e9  # seconds that a task can have taken: many of the largest floats make infinity
KINDS = {"input": "activations", "output": "activations", "labels": "labels", "copy": "copies"}


class Opened(NamedTuple):
    """What a reply holds: payloads by name, metrics, the number of its message, its bytes; or why
    there is none, and Flower's code.
    """

    payloads: dict[str, bytes]
    metrics: dict[str, float] | None
    number: int | None = None
    error: str | None = None
    code: int = 0
    size: Size = (0, 0, 0)


def opened(reply: Message) -> Opened:
    """Return what a reply holds."""
    if reply.has_error():
        return Opened({}, None, None, reason_of(reply), reply.error.code)
    payloads: dict[str, bytes] = {}
    for _, record in records(reply.content, ArrayRecord):
        for name, array in record.items():  # one name twice: the second is none that was asked for
            payloads[name if name not in payloads else f"{name} (again)"] = array.data
    metrics = next(iter(records(reply.content, MetricRecord)), None)
    number = None
    with suppress(PayloadError):
        number = read(reply.content, UplinkHeader).number
    found = None if metrics is None else cast(dict[str, float], dict(metrics[1]))
    return Opened(payloads, found, number, size=measured(reply.content, NOTE))


@dataclass
class Links:
    """Counts lengths of payloads that were put into messages, by link, and what they were.

    By segment: bytes up and down, real seconds of work, and of how many mini-batches.
    """

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)

    def begin(self, segments: int) -> None:
        """Begin with nothing counted, unless something was."""
        for row in (self.up, self.down, self.seconds, self.batches):
            row += [0] * (segments - len(row))

    def sent(
        self,
        segment: int,
        payloads: Mapping[str, bytes],
        size: Size,
        plain: Plain,
        traffic: Traffic,
    ) -> None:
        """Count what a segment is sent; `size`: of the content with these payloads."""
        self.down[segment] += size[0]
        traffic.count_sent(size, plain_bytes(payloads, plain))
        self._count(payloads)

    def count_received(self, segment: int, reply: Opened, traffic: Traffic) -> None:
        """Count what a segment has sent, used or not."""
        self.up[segment] += reply.size[0]
        traffic.count_received(reply.size, 0)
        self._count(reply.payloads)

    def worked(self, segment: int, seconds: object, batches: float) -> None:
        """Count real seconds that a segment has worked on so many mini-batches."""
        if isinstance(seconds, float) and 0 <= seconds <= LONGEST:
            self.seconds[segment] += seconds
            self.batches[segment] += batches

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name, those of links as lists by segment.

        `seconds_by_segment`: real ones of a mini-batch, in the mean: the slowest is the bound.
        """
        kinds = ("activations", "gradients", "labels", "copies")
        return {
            "uplink_bytes_by_segment": list(self.up),
            "downlink_bytes_by_segment": list(self.down),
            "seconds_by_segment": [
                round(seconds / max(batches, 1), 5)
                for seconds, batches in zip(self.seconds, self.batches, strict=True)
            ],
            **{f"{kind}_bytes": self.kinds[kind] for kind in kinds},
        }

    def _count(self, payloads: Mapping[str, bytes]) -> None:
        for name, payload in payloads.items():
            self.kinds[KINDS.get(name, "gradients")] += len(payload)


def plain_bytes(payloads: Mapping[str, bytes], plain: Plain) -> int:
    """Return what payloads would be as Flower's plain Arrays.

    They are our own, or were held against what was asked: what they declare is believed.
    """
    total = 0
    for name, payload in payloads.items():
        key = GRADIENTS if name.startswith(GRADIENTS) else name
        shapes = plain.get(key, [])
        if name == "copy":
            shapes = [((describe(payload).n,), "float32")]
        elif key == GRADIENTS and shapes:  # as many as its own message had mini-batches
            one = max(math.prod(shapes[0][0]), 1)
            shapes = shapes[:1] * (describe(payload).n // one)
        total += sum(_array_bytes(shape, dtype) for shape, dtype in shapes)
    return total


@lru_cache(maxsize=64)
def _array_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of an Array as Flower sends it: of one that was made."""
    return len(Array(np.zeros(shape, dtype)).data)
