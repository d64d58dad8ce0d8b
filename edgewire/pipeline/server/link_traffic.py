"""Counts the bytes of a run with a cut model: by segment, by direction, by kind of payload."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import describe
from edgewire.compression.flower import Traffic
from edgewire.compression.flower.headers import HEADER, UplinkHeader, read
from edgewire.compression.flower.message_size import Size, measured
from edgewire.compression.flower.records import records
from edgewire.compression.flower.traffic import reason_of
from edgewire.compression.wire import stream_sizes
from edgewire.pipeline.messages import TargetTensor

HEAD = 128  # bytes of one of Flower's Arrays before its values
LONGEST = 1e9  # a report of more seconds is ignored, so that the sum of seconds stays finite
KINDS = {"input": "activations", "output": "activations", "labels": "labels", "copy": "copies"}


class Opened(NamedTuple):
    """The content of a segment's reply: payloads by name, metrics and size.

    `number`: the number of the message that the reply answers. For an error reply, `error` is the
    reason, and `code` is Flower's error code.
    """

    payloads: dict[str, bytes]
    metrics: dict[str, float] | None
    number: int | None = None
    error: str | None = None
    code: int = 0
    size: Size = (0, 0, 0)


def opened(reply: Message) -> Opened:
    """Return the content of a reply, without a check."""
    if reply.has_error():
        return Opened({}, None, None, reason_of(reply), reply.error.code)
    payloads: dict[str, bytes] = {}
    for _, record in records(reply.content, ArrayRecord):
        # A second payload with the same name gets a name that no task asks for, so that
        # `Plan.check` refuses it.
        for name, array in record.items():
            payloads[name if name not in payloads else f"{name} (again)"] = array.data
    metrics = next(iter(records(reply.content, MetricRecord)), None)
    number = None
    with suppress(PayloadError):
        number = read(reply.content, UplinkHeader).number
    found = None if metrics is None else cast(dict[str, float], dict(metrics[1]))
    return Opened(payloads, found, number, size=measured(reply.content, HEADER))


@dataclass
class Links:
    """Counts bytes by segment and direction, and payload bytes by kind.

    By segment: `up`, `down`: the bytes of replies and of messages. `seconds`: real seconds of work.
    `batches`: the number of mini-batches in these seconds.
    """

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)

    def begin(self, segments: int) -> None:
        """Set all counts to 0, unless a loaded state has set them."""
        for row in (self.up, self.down, self.seconds, self.batches):
            row += [0] * (segments - len(row))

    def sent(
        self,
        segment: int,
        payloads: Mapping[str, bytes],
        size: Size,
        plain: int,
        traffic: Traffic,
    ) -> None:
        """Count a message to a segment.

        `size`: the size of the message with these payloads. `plain`: their bytes without
        compression (`plain_bytes`).
        """
        self.down[segment] += size[0]
        traffic.count_sent(size, plain, stream_sizes(payloads.values()))
        self._count(payloads)

    def count_received(self, segment: int, reply: Opened, traffic: Traffic) -> None:
        """Count a segment's reply, also if it is not used."""
        self.up[segment] += reply.size[0]
        traffic.count_received(reply.size, 0)
        with suppress(PayloadError):  # the payloads are not checked yet
            traffic.count_decoded(stream_sizes(reply.payloads.values()))
        self._count(reply.payloads)

    def worked(self, segment: int, seconds: object, batches: float) -> None:
        """Count the real seconds that a segment has worked on `batches` mini-batches."""
        if isinstance(seconds, float) and 0 <= seconds <= LONGEST:
            self.seconds[segment] += seconds
            self.batches[segment] += batches

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name; counters by segment are lists.

        `seconds_by_segment`: the mean real seconds for a mini-batch. The slowest segment limits the
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


def plain_bytes(
    payloads: Mapping[str, bytes], targets: Sequence[TargetTensor], rows: tuple[int, int]
) -> int:
    """Return the bytes that the payloads' tensors would need as Flower's Arrays, uncompressed.

    `targets`: what "labels" holds; `rows`: of so many mini-batches, and samples in each. The
    function does not check the payloads' headers. So the server must have made the payloads, or
    `Plan.check` must have accepted them.
    """
    floats = [describe(payload) for name, payload in payloads.items() if name != "labels"]
    total = sum(HEAD * each.tensors + 4 * each.n for each in floats)
    if "labels" in payloads:
        for each in targets:
            size = math.prod((rows[1], *each.shape)) * np.dtype(each.dtype).itemsize
            total += rows[0] * (HEAD + size)
    return total
