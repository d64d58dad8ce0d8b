"""Counts the bytes that cross the network, and warns if compression or a strategy harms a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger

from flwr.app import ArrayRecord, Message

from ..batchnorm import below_zero
from ..layout import Layout
from ..wire import StreamSizes
from .message_size import Size, other_than_payloads
from .records import Vector

log = getLogger("edgewire")
NO_STREAMS = StreamSizes()
_RAISED = re.compile(r"<class '(?:[^'\s]*\.)?([^'\s.]+)'>:<'(.*)'>", re.DOTALL)
_FRAME = re.compile(r'^\s*File "[^"\n]*", line \d+', re.MULTILINE)  # Ray's have no such head
_TRACEBACK = "Traceback (most recent call last)"
LONGEST_REASON, LONGEST_LINE = 4096, 400  # characters of a node's error; the rest is cut off


@dataclass
class Traffic:
    """Counters of the bytes, updates and failures of a run.

    The uplink is from the nodes to the server. The downlink is from the server to the nodes.

    - `uplink_bytes`, `downlink_bytes`: bytes of the payloads.
    - `*_bytes_float32`: bytes that Flower would send for the same models without compression.
      Flower sends one Array per tensor in the tensor's dtype, which is usually float32. Frozen
      parameters are not counted.
    - `*_other_bytes`: bytes of the records that Flower sends with or without compression. These are
      other ArrayRecords' data and the serialised ConfigRecords and MetricRecords.
    - `*_header_bytes`: bytes of the headers, records that only compressed messages have.
    - `uplink_entries`: entries in the nodes' updates after sparsification.
    - `uplink_entries_whole`: entries in the same updates before sparsification.
    - `*_index_bytes`, `*_value_bytes`: the part of the payloads' bytes that says which entries they
      hold, and the part with the entries' values. The rest is the payloads' headers, and replies
      that could not be decoded.
    - `*_secure_bytes`: the part of `*_other_bytes` that is for a secure sum: keys, shares and
      lists of nodes.
    - `client_updates`, `failures`: the number of updates, and of replies that could not be used.
    """

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_float32: int = 0
    downlink_bytes_float32: int = 0
    uplink_entries: int = 0
    uplink_entries_whole: int = 0
    client_updates: int = 0
    failures: int = 0
    uplink_other_bytes: int = 0
    downlink_other_bytes: int = 0
    uplink_header_bytes: int = 0
    downlink_header_bytes: int = 0
    uplink_index_bytes: int = 0
    uplink_value_bytes: int = 0
    downlink_index_bytes: int = 0
    downlink_value_bytes: int = 0
    uplink_secure_bytes: int = 0
    downlink_secure_bytes: int = 0

    def count_sent(self, size: Size, plain: int, streams: StreamSizes = NO_STREAMS) -> None:
        """Count a message of this size; `plain`: the bytes of its models without compression.

        `streams`: the sizes of the streams in its payloads.
        """
        self.downlink_index_bytes += streams.indices
        self.downlink_value_bytes += streams.values
        self.downlink_bytes += size[0]
        self.downlink_bytes_float32 += plain
        self.downlink_other_bytes += other_than_payloads(size)
        self.downlink_header_bytes += size[1]

    def count_received(self, size: Size, plain: int) -> None:
        """Count a reply of this size; `plain`: the bytes of its model without compression."""
        self.uplink_bytes += size[0]
        self.uplink_bytes_float32 += plain
        self.uplink_other_bytes += other_than_payloads(size)
        self.uplink_header_bytes += size[1]

    def count_decoded(self, streams: StreamSizes) -> None:
        """Count the streams of a reply's payload; `count_received` has counted all its bytes."""
        self.uplink_index_bytes += streams.indices
        self.uplink_value_bytes += streams.values

    @property
    def uplink_ratio(self) -> float:
        """Compression ratio of replies: their bytes without compression, divided by bytes sent."""
        sent = self.uplink_bytes + self.uplink_other_bytes + self.uplink_header_bytes
        return (self.uplink_bytes_float32 + self.uplink_other_bytes) / max(sent, 1)

    @property
    def downlink_ratio(self) -> float:
        """Compression ratio of messages: their bytes without compression, divided by bytes sent."""
        sent = self.downlink_bytes + self.downlink_other_bytes + self.downlink_header_bytes
        return (self.downlink_bytes_float32 + self.downlink_other_bytes) / max(sent, 1)

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dict(vars(self))

    @property
    def sparsity(self) -> float | None:
        """The measured share of the updates' entries that nodes left out; None without updates."""
        whole = self.uplink_entries_whole
        return 1 - self.uplink_entries / whole if whole else None


def flower_bytes(arrays: ArrayRecord) -> int:
    """Return the bytes of a model's Arrays, as Flower sends them without compression."""
    return sum(len(array.data) for array in arrays.values())


def reason_of(reply: Message) -> str:
    """Return an error's text as one line, shortened; of a traceback the last line.

    The format `<class 'a.B'>:<'text'>` of Flower's nodes becomes "B: text".
    """
    reason, name = reply.error.reason or "", ""
    if raised := _RAISED.fullmatch(reason):
        name, reason = f"{raised[1]}: ", raised[2]
    start = reason[:LONGEST_REASON]
    if _TRACEBACK in start or _FRAME.search(start):  # its last line names the exception
        said = "".join(reason[-LONGEST_REASON:].strip().splitlines()[-1:])
    else:
        said = " ".join(reason[:LONGEST_REASON].split())
    return in_one_line(f"{name}{said}" if said else name.rstrip(": ") or "no reason given")


def in_one_line(reason: str) -> str:
    """Make untrusted text safe to log: short, on one line, without control characters."""
    cut = reason if len(reason) <= LONGEST_LINE else f"{reason[:LONGEST_LINE]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def warn_of_no_names(names: Sequence[str]) -> None:
    """Warn if all names are numbers, as for a model that is a list of arrays.

    Without names, BatchNorm's running statistics cannot be recognised.
    """
    if len(names) > 1 and all(name.isdecimal() for name in names):
        log.warning(
            "the model's arrays have no names, so a lossy method compresses BatchNorm's running "
            "statistics among them as weights: give ArrayRecord(model.state_dict()), or "
            'CompressedGrid(grid, exact=["3", "4"]) with their numbers'
        )


def warn_of_variances(layout: Layout, vector: Vector) -> bool:
    """Warn if a model has a negative running variance, and return whether it has one."""
    if below := below_zero(layout, vector):
        log.warning(
            "the strategy has led one of BatchNorm's running variances below 0, and the model to "
            "NaN: it steps statistics as weights. StatisticsAveraging(strategy) keeps them "
            "out of its sight"
        )
    return below
