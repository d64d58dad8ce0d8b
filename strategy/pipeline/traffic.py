"""Bytes of a cut model's run: by link, by direction, and by kind of payload."""

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

Plain = Mapping[str, list[tuple[tuple[int, ...], str]]]  # name -> shapes and dtypes of its tensors
LONGEST = 1e9  # the most seconds to believe of a task: a sum of huge floats becomes infinity
KINDS = {"input": "activations", "output": "activations", "labels": "labels", "copy": "copies"}


class Opened(NamedTuple):
    """The content of a reply: payloads by name, metrics, the number of its message, its bytes.

    For an error reply `error` is the reason, and `code` Flower's error code.
    """

    payloads: dict[str, bytes]
    metrics: dict[str, float] | None
    number: int | None = None
    error: str | None = None
    code: int = 0
    size: Size = (0, 0, 0)


def opened(reply: Message) -> Opened:
    """Return the content of a reply, not yet checked."""
    if reply.has_error():
        return Opened({}, None, None, reason_of(reply), reply.error.code)
    payloads: dict[str, bytes] = {}
    for _, record in records(reply.content, ArrayRecord):
        # A second payload of one name gets a name that no task asks for: `Plan.check` refuses it.
        for name, array in record.items():
            payloads[name if name not in payloads else f"{name} (again)"] = array.data
    metrics = next(iter(records(reply.content, MetricRecord)), None)
    number = None
    with suppress(PayloadError):
        number = read(reply.content, UplinkHeader).number
    found = None if metrics is None else cast(dict[str, float], dict(metrics[1]))
    return Opened(payloads, found, number, size=measured(reply.content, NOTE))


@dataclass
class Links:
    """Counts bytes by link, and payload bytes by kind.

    By segment: bytes `up` and `down`, real `seconds` of work, and the mini-batches (`batches`) that
    these seconds are of.
    """

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)

    def begin(self, segments: int) -> None:
        """Begin with counts of 0, unless a loaded state has counts."""
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
        """Count a message to a segment; `size`: of its content with these payloads."""
        self.down[segment] += size[0]
        traffic.count_sent(size, plain_bytes(payloads, plain))
        self._count(payloads)

    def count_received(self, segment: int, reply: Opened, traffic: Traffic) -> None:
        """Count a segment's reply, whether it is used or not."""
        self.up[segment] += reply.size[0]
        traffic.count_received(reply.size, 0)
        self._count(reply.payloads)

    def worked(self, segment: int, seconds: object, batches: float) -> None:
        """Count the real seconds that a segment has worked on `batches` mini-batches."""
        if isinstance(seconds, float) and 0 <= seconds <= LONGEST:
            self.seconds[segment] += seconds
            self.batches[segment] += batches

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name, those of links as lists by segment.

        `seconds_by_segment`: the mean real seconds of a mini-batch. The slowest segment bounds the
        speed of the pipeline.
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
    """Return the bytes that payloads would have as Flower's plain Arrays.

    This trusts the payloads' headers: the payloads are the server's own, or `Plan.check` has passed
    them.
    """
    total = 0
    for name, payload in payloads.items():
        key = GRADIENTS if name.startswith(GRADIENTS) else name
        shapes = plain.get(key, [])
        if name == "copy":
            shapes = [((describe(payload).n,), "float32")]
        elif key == GRADIENTS and shapes:  # one for each mini-batch of the task it answers
            one = max(math.prod(shapes[0][0]), 1)
            shapes = shapes[:1] * (describe(payload).n // one)
        total += sum(_array_bytes(shape, dtype) for shape, dtype in shapes)
    return total


@lru_cache(maxsize=64)
def _array_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of a Flower Array with this shape and dtype, by making one."""
    return len(Array(np.zeros(shape, dtype)).data)
