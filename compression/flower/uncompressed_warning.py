"""Warns of large records that are sent uncompressed, with the reason and a remedy."""

from __future__ import annotations

from collections import Counter
from logging import getLogger

from flwr.app import ArrayRecord, Message, RecordDict

from .headers import HEADER
from .message_size import record_bytes
from .records import payload_of, type_of, values_of
from .tensor_split import is_float
from .traffic import Traffic

log = getLogger("edgewire")
LEAST_SHARE = 0.1  # a record with a smaller share of all bytes causes no warning
LEAST_RECORD = 512  # bytes; a smaller record causes no warning, unless nothing is compressed
MOST_SAID = 3  # the most records in one warning
# Prefixes of the records of Flower's old API, and of its secure aggregation.
OLD_API = ("fitins.", "evaluateins.", "getparametersins.", "getpropertiesins.", "secaggplus_")
NO_ARRAYS = "what is no ArrayRecord travels as it is; a model goes as named arrays of floats"
NO_FLOATS = "its arrays are no floats (trees, say), which no method here makes smaller"
SECOND = "the first ArrayRecord of a message is the model, others travel as they are"
NOT_TRAINED = "replies are compressed to messages to train with a model, which they change"
UNKNOWN = (
    "the model whole, as no reply says which version a node has and the downlink's method needs "
    'one: pull the replies, or give downlink="int8"'
)
NO_DOWNLINK = (
    "the model whole, as CompressedGrid(grid) has no downlink, and no reply was made smaller "
    'either: give downlink="int8"'
)


def old_api(content: RecordDict, whose: str) -> str | None:
    """Return advice for a message of Flower's old API, whose arrays have no names; None for others.

    `whose`: the class that cannot compress the message.
    """
    name = next((name for name in values_of(content) if name.startswith(OLD_API)), None)
    return name and (
        f"{whose}: the server is of Flower's old API (it sends {name!r}), of which nothing can be "
        f"compressed: move it to the message API, flwr.serverapp, or take {whose} away"
    )


def holds_floats(arrays: ArrayRecord) -> bool:
    """Return whether at least one array has a float type."""
    return any(is_float(type_of(array)) for array in arrays.values())


class Uncompressed:
    """Counts the bytes of records that are sent uncompressed, and warns of the largest.

    The warning is logged at the replies to the grid's second call, or at a later call if there
    were no replies. If nothing was compressed, a warning is logged at the first replies, because
    there may be no others. `enabled`: False for no warnings.
    """

    def __init__(self, traffic: Traffic, *, enabled: bool) -> None:
        self._traffic, self._open, self._calls = traffic, enabled, 0
        self._bytes = Counter[tuple[str, str]]()  # by the record and the reason
        self._said = set[tuple[str, str]]()

    def called(self) -> None:
        """Count a call of the grid."""
        self._calls += 1
        if self._open and self._calls > 2:
            self._warn()

    def answered(self) -> None:
        """Warn at the replies to the second call, or at the first if nothing was compressed."""
        if self._open and (self._calls > 1 or not self._payloads):
            self._open = self._calls < 2
            self._warn()

    def sent(self, message: Message, model: str | None, whole: str = "") -> None:
        """Count a message's uncompressed records; `model`: the name of the compressed record.

        `whole`: why this record holds the whole model all the same; "": it does not.
        """
        if self._open:
            self._count(message, "messages of type", None if whole else model, whole or SECOND)

    def received(self, reply: Message, *, asked: bool) -> None:
        """Count a reply's uncompressed records. `asked`: True if the message held a model."""
        if self._open:
            payload = payload_of(reply.content)
            changed = asked and reply.metadata.message_type.startswith("train")
            why = SECOND if changed else NOT_TRAINED
            self._count(reply, "replies to", payload and payload[0], why)

    @property
    def _payloads(self) -> int:
        return self._traffic.uplink_bytes + self._traffic.downlink_bytes

    def _count(self, message: Message, where: str, compressed: str | None, floats: str) -> None:
        """Count the records but `compressed`; `floats`: why other records of floats are not."""
        for name, record in values_of(message.content).items():
            if name in (HEADER, compressed):
                continue
            if isinstance(record, ArrayRecord):
                size = sum(len(array.data) for array in record.values())
                why = floats if holds_floats(record) else NO_FLOATS
            else:
                size, why = record_bytes(record), NO_ARRAYS
            kind = type(record).__name__
            said = f"{kind} {name[:40]!r} of {where} {message.metadata.message_type[:40]!r}"
            if size >= LEAST_RECORD or not self._payloads:
                self._bytes[said, why] += size

    def _warn(self) -> None:
        """Warn of large uncompressed records that no earlier warning named."""
        traffic = self._traffic
        every = self._payloads + traffic.uplink_other_bytes + traffic.downlink_other_bytes
        found = [
            record
            for record, size in self._bytes.most_common(MOST_SAID)
            if size > LEAST_SHARE * every
            and record not in self._said
            # If at least the replies are compressed, uncompressed messages are the user's choice.
            and not (record[1] == NO_DOWNLINK and traffic.uplink_bytes)
        ]
        self._said.update(found)
        if found:
            lines = (f"{one[0]}, {self._bytes[one]:,} bytes so far ({one[1]})" for one in found)
            log.warning("not compressed: %s", "; ".join(lines))
