"""What crossed the network, counted; and what a user is warned of by looking at it."""

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
LONGEST_REASON, LONGEST_LINE = 4096, 400  # characters of a node's error that are looked at, logged


@dataclass
class Traffic:
    """Counters of a run. Bytes are lengths of payloads that were put into messages.

    `*_float32`: the bytes of the same models as Flower sends them without compression, one Array a
    tensor, in the model's own types (float32, as a rule). `*_other_bytes`: of all else in messages
    that Flower sends as well: other ArrayRecords' data, ConfigRecords and MetricRecords as Flower
    serialises them. `*_note_bytes`: of the link's own record. `uplink_entries`: those that nodes'
    updates held; `uplink_entries_whole`: those that the same updates would have held whole.
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
        """Count a message: its size, and what Flower would have sent for its payloads."""
        self.downlink_bytes += size[0]
        self.downlink_bytes_float32 += plain
        self.downlink_other_bytes += other_than_payloads(size)
        self.downlink_note_bytes += size[1]

    def count_received(self, size: Size, plain: int) -> None:
        """Count a reply: its size, and what Flower would have sent for its payloads."""
        self.uplink_bytes += size[0]
        self.uplink_bytes_float32 += plain
        self.uplink_other_bytes += other_than_payloads(size)
        self.uplink_note_bytes += size[1]

    @property
    def uplink_ratio(self) -> float:
        """How many times as much Flower would have sent up, of all that messages hold."""
        sent = self.uplink_bytes + self.uplink_other_bytes + self.uplink_note_bytes
        return (self.uplink_bytes_float32 + self.uplink_other_bytes) / max(sent, 1)

    @property
    def downlink_ratio(self) -> float:
        """How many times as much Flower would have sent down, of all that messages hold."""
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
    """Return the bytes of a model as Flower sends it: of the very Arrays, in their own types."""
    return sum(len(array.data) for array in arrays.values())


def reason_of(reply: Message) -> str:
    """Return the last line of an error's reason, cut short: of a traceback, what was raised.

    What Flower's own nodes say, `<class 'a.B'>:<'text'>`, is "B: text".
    """
    reason, name = reply.error.reason or "", ""
    if raised := _RAISED.fullmatch(reason):
        name, reason = f"{raised[1]}: ", raised[2]
    lines = reason[-LONGEST_REASON:].strip().splitlines()
    return in_one_line(f"{name}{lines[-1]}" if lines else name.rstrip(": ") or "no reason given")


def in_one_line(reason: str) -> str:
    """Return what a node has a part in as a log may hold it: cut short, no control characters."""
    cut = reason if len(reason) <= LONGEST_LINE else f"{reason[:LONGEST_LINE]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def _unnamed(names: Sequence[str]) -> bool:
    """Return whether tensors have numbers for names, as those of a list of arrays do."""
    return len(names) > 1 and all(name.isdecimal() for name in names)


def _loses(payload: bytes) -> bool:
    """Return whether a payload lacks anything of what was given."""
    said = describe(payload)
    exact = cast(type[Quantizer], get("quantizer", said.quantizer)).exact
    return said.selected < said.n or not exact


def warn_of_no_names(names: Sequence[str], exact: Sequence[object], payload: bytes) -> bool:
    """Warn of a lossy payload for tensors of which nobody knows which are statistics.

    Return whether that was so, or never will be: nobody needs to look again.
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
    """Warn of a model that a strategy has made, if so; return whether it was warned of."""
    if below := below_zero(layout, vector):
        log.warning(
            "the strategy has led one of BatchNorm's running variances below 0, and the model to "
            "NaN: it steps statistics as weights. StatisticsAveraging(strategy) keeps them "
            "out of its sight"
        )
    return below
