"""Bytes of a cut model's run: of every link, each way, and of what they were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from compression import PayloadError, describe
from compression.flower import Traffic
from compression.flower.arrays import STYPE, records
from compression.flower.tensors import GRADIENTS

Plain = Mapping[str, list[tuple[tuple[int, ...], str]]]  # name -> shapes and types of its tensors
KINDS = {"input": "activations", "output": "activations", "labels": "labels", "copy": "copies"}


class Links:
    """Counts lengths of payloads that were put into messages, into a run's traffic and by link."""

    def __init__(self, segments: int, traffic: Traffic) -> None:
        self._traffic = traffic
        self._up, self._down = [0] * segments, [0] * segments
        self._kinds = Counter[str]()
        self._seconds, self._batches = [0.0] * segments, [0.0] * segments

    def down(self, segment: int, payloads: Mapping[str, bytes], plain: Plain) -> None:
        """Count what a segment is sent."""
        size = sum(map(len, payloads.values()))
        self._down[segment] += size
        self._traffic.downlink_bytes += size
        self._traffic.downlink_bytes_float32 += _plain_bytes(payloads, plain)
        self._count(payloads)

    def up(self, segment: int, content: RecordDict) -> dict[str, bytes]:
        """Count what a segment has sent, used or not, and return its payloads by name."""
        found = {
            name: array.data
            for _, record in records(content, ArrayRecord)
            for name, array in record.items()
            if array.stype == STYPE
        }
        size = sum(map(len, found.values()))
        self._up[segment] += size
        self._traffic.uplink_bytes += size
        self._count(found)
        return found

    def plain_up(self, segment: int, payloads: Mapping[str, bytes], plain: Plain) -> None:
        """Count what Flower would have sent in place of an answer's payloads."""
        self._traffic.uplink_bytes_float32 += _plain_bytes(payloads, plain)

    def metrics(self, content: RecordDict) -> MetricRecord:
        """Return an answer's metrics. Raises `PayloadError` if there are none."""
        found = next(iter(records(content, MetricRecord)), None)
        if found is None:
            raise PayloadError("an answer must hold a MetricRecord")
        return found[1]

    def worked(self, segment: int, seconds: object, batches: float) -> None:
        """Count real seconds that a segment has worked on so many mini-batches."""
        if isinstance(seconds, float) and 0 <= seconds < math.inf:
            self._seconds[segment] += seconds
            self._batches[segment] += batches

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name, those of links as lists by segment.

        `seconds_by_segment`: real ones of a mini-batch, in the mean: the slowest is the bound.
        """
        kinds = ("activations", "gradients", "labels", "copies")
        return {
            "uplink_bytes_by_segment": list(self._up),
            "downlink_bytes_by_segment": list(self._down),
            "seconds_by_segment": [
                round(seconds / max(batches, 1), 5)
                for seconds, batches in zip(self._seconds, self._batches, strict=True)
            ],
            **{f"{kind}_bytes": self._kinds[kind] for kind in kinds},
        }

    def _count(self, payloads: Mapping[str, bytes]) -> None:
        for name, payload in payloads.items():
            self._kinds[KINDS.get(name, "gradients")] += len(payload)


def _plain_bytes(payloads: Mapping[str, bytes], plain: Plain) -> int:
    """Return what payloads would be as Flower's plain Arrays."""
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
