"""Counts what crosses the network; warns of models that compression or a strategy harms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import cast

from flwr.app import ArrayRecord, Message

from ..base import Quantizer
from ..batchnorm import below_zero
from ..decoder import describe
from ..layout import Layout
from ..registry import get
from .message_size import Size, other_than_payloads
from .records import Vector

log = getLogger("edgewire")
_RAISED = re.compile(r"<class '(?:[^'\s]*\.)?([^'\s.]+)'>:<'(.*)'>", re.DOTALL)
LONGEST_REASON, LONGEST_LINE = 4096, 400  # characters of a node's error that are read, logged


@dataclass
class Traffic:
    """Counters of a run. `uplink_bytes` and `downlink_bytes` are lengths of payloads in messages.

    `*_float32`: bytes of the same models as Flower sends them without compression: one Array per
    tensor, in the model's own types (usually float32). `*_other_bytes`: bytes of everything else
    that Flower would send as well: data of other ArrayRecords, and ConfigRecords and MetricRecords
    as Flower serialises them. `*_note_bytes`: bytes of the header, the link's own record.
    `uplink_entries`: entries in the nodes' updates; `uplink_entries_whole`: entries that the same
    updates would have without sparsification.
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
    uplink_note_bytes: int = 0
    downlink_note_bytes: int = 0

    def count_sent(self, size: Size, plain: int) -> None:
        """Count a message: its size, and the bytes that Flower would send for its payloads."""
        self.downlink_bytes += size[0]
        self.downlink_bytes_float32 += plain
        self.downlink_other_bytes += other_than_payloads(size)
        self.downlink_note_bytes += size[1]

    def count_received(self, size: Size, plain: int) -> None:
        """Count a reply: its size, and the bytes that Flower would send for its payloads."""
        self.uplink_bytes += size[0]
        self.uplink_bytes_float32 += plain
        self.uplink_other_bytes += other_than_payloads(size)
        self.uplink_note_bytes += size[1]

    @property
    def uplink_ratio(self) -> float:
        """Compression ratio of all that replies hold: Flower's bytes divided by the bytes sent."""
        sent = self.uplink_bytes + self.uplink_other_bytes + self.uplink_note_bytes
        return (self.uplink_bytes_float32 + self.uplink_other_bytes) / max(sent, 1)

    @property
    def downlink_ratio(self) -> float:
        """Compression ratio of all that messages hold: Flower's bytes divided by the bytes sent."""
        sent = self.downlink_bytes + self.downlink_other_bytes + self.downlink_note_bytes
        return (self.downlink_bytes_float32 + self.downlink_other_bytes) / max(sent, 1)

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dict(vars(self))

    @property
    def sparsity(self) -> float | None:
        """The share of entries that nodes left out, measured; None if no update was read."""
        whole = self.uplink_entries_whole
        return 1 - self.uplink_entries / whole if whole else None


def flower_bytes(arrays: ArrayRecord) -> int:
    """Return the bytes of a model as Flower sends it: of its Arrays' data, in their own types."""
    return sum(len(array.data) for array in arrays.values())


def reason_of(reply: Message) -> str:
    """Return the last line of an error's reason, shortened; a traceback's last line is the error.

    Flower's own nodes write `<class 'a.B'>:<'text'>`; this becomes "B: text".
    """
    reason, name = reply.error.reason or "", ""
    if raised := _RAISED.fullmatch(reason):
        name, reason = f"{raised[1]}: ", raised[2]
    lines = reason[-LONGEST_REASON:].strip().splitlines()
    return in_one_line(f"{name}{lines[-1]}" if lines else name.rstrip(": ") or "no reason given")


def in_one_line(reason: str) -> str:
    """Return text that a node may have written as safe for a log: short, no control characters."""
    cut = reason if len(reason) <= LONGEST_LINE else f"{reason[:LONGEST_LINE]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def _unnamed(names: Sequence[str]) -> bool:
    """Return whether all names are numbers, as those of a list of arrays are."""
    return len(names) > 1 and all(name.isdecimal() for name in names)


def _loses(payload: bytes) -> bool:
    """Return whether a payload is lossy."""
    said = describe(payload)
    exact = cast(type[Quantizer], get("quantizer", said.quantizer)).exact
    return said.selected < said.n or not exact


def warn_of_no_names(names: Sequence[str], exact: Sequence[object], payload: bytes) -> bool:
    """Warn if a lossy payload holds unnamed tensors, among which statistics cannot be recognised.

    Return True if it has warned, or if tensors have names: no later check is needed.
    """
    if not _unnamed(names):
        return True
    if lost := not exact and _loses(payload):
        log.warning(
            "the model's arrays have no names, so BatchNorm's running statistics among them are "
            "compressed as weights are: give ArrayRecord(model.state_dict()), or "
            'CompressedGrid(grid, exact=["3", "4"]) with their numbers'
        )
    return lost


def warn_of_variances(layout: Layout, vector: Vector) -> bool:
    """Warn if a strategy's model has a negative running variance; return whether it has warned."""
    if below := below_zero(layout, vector):
        log.warning(
            "the strategy has led one of BatchNorm's running variances below 0, and the model to "
            "NaN: it steps statistics as weights. StatisticsAveraging(strategy) keeps them "
            "out of its sight"
        )
    return below
