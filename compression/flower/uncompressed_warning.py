"""Warns once if a large part of a run's bytes is sent uncompressed."""

from __future__ import annotations

from collections import Counter
from logging import getLogger

from flwr.app import ArrayRecord, Message, RecordDict

from .headers import HEADER
from .message_size import record_bytes
from .records import type_of, values_of
from .tensor_split import is_float
from .traffic import Traffic

log = getLogger("edgewire")
LEAST_SHARE = 0.1  # of all bytes; a record with a smaller share causes no warning
LEAST_RECORD = 512  # bytes; smaller records cause no warning
# Prefixes of the records of Flower's old API, and of its secure aggregation.
OLD_API = ("fitins.", "evaluateins.", "getparametersins.", "getpropertiesins.", "secaggplus_")
RULE = (
    "of a message, its first ArrayRecord of floats is compressed, if CompressedGrid has a "
    'downlink="int8", say; of a reply, only the model that a node has trained'
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
    """Counts the bytes of records that are sent uncompressed, and warns once of the largest.

    The warning is logged at the second replies, or at the first if nothing was compressed, because
    there may be no others. `downlink`: whether messages are compressed; if not, replies suffice.
    """

    def __init__(self, traffic: Traffic, *, enabled: bool, downlink: bool) -> None:
        self._traffic, self._open, self._downlink = traffic, enabled, downlink
        self._bytes, self._answers = Counter[str](), 0  # by the record's name and its message

    def count(self, message: Message, compressed: str | None) -> None:
        """Count the records of a message or reply, except the compressed one."""
        if self._open:
            kind = message.metadata.message_type[:40]
            where = f"replies to {kind!r}" if message.metadata.reply_to_message_id else repr(kind)
            for name, record in values_of(message.content).items():
                if name in (HEADER, compressed):
                    continue
                arrays = record.values() if isinstance(record, ArrayRecord) else None
                size = record_bytes(record) if arrays is None else sum(len(a.data) for a in arrays)
                if size >= LEAST_RECORD:
                    self._bytes[f"{name[:40]!r} of {where}"] += size

    def answered(self) -> None:
        """Warn, if it is time, of the record with the most uncompressed bytes."""
        traffic, self._answers = self._traffic, self._answers + 1
        payloads = traffic.uplink_bytes + traffic.downlink_bytes
        if not self._open or (payloads and self._answers < 2):
            return
        if not self._downlink and not traffic.uplink_bytes:
            self._bytes["the model of messages"] = traffic.downlink_bytes
        every = payloads + traffic.uplink_other_bytes + traffic.downlink_other_bytes
        record, size = max(self._bytes.items(), key=lambda pair: pair[1], default=("", 0))
        self._open = self._answers < 2 and size <= LEAST_SHARE * every
        if size > LEAST_SHARE * every:
            log.warning("not compressed: %s, %d bytes so far (%s)", record, size, RULE)
