"""Warns once of each large record that is sent uncompressed, with the reason and a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from logging import getLogger
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, RecordDict

from .headers import HEADER
from .message_size import record_bytes
from .records import type_of
from .tensor_split import is_float
from .traffic import Traffic

log = getLogger("edgewire")
MOST_CALLS = 20  # how many calls of the grid are examined
LEAST_SHARE = 0.1  # a record with a smaller share of all bytes causes no warning
LEAST_RECORD = 512  # bytes; a smaller record causes no warning, unless nothing is compressed
MOST_SAID = 3  # the most records in one warning
# Prefixes of the records of Flower's old API, and of its secure aggregation.
OLD_API = ("fitins.", "evaluateins.", "getparametersins.", "getpropertiesins.", "secaggplus_")
NO_ARRAYS = "what is no ArrayRecord travels as it is; a model goes as named arrays of floats"
NO_FLOATS = "its arrays are no floats (trees, say), which no method here makes smaller"
SECOND = "the first ArrayRecord of a message is the model, others travel as they are"
NO_MODEL = "its message held no model that it could be a change of"
NOT_TRAINED = "replies are compressed to messages to train, whose model they change"
UNKNOWN = (
    "the model whole, as no reply says which version a node has and the downlink's method needs "
    'one: pull the replies, or give downlink="int8"'
)

NO_DOWNLINK = (
    "the model whole, as CompressedGrid(grid) has no downlink, and no reply was made "
    "smaller either: give "
    'downlink="int8"'
)


class UncompressedRecord(NamedTuple):
    """An uncompressed record in messages of one type, or in replies to messages of this type."""

    reply: bool
    type: str
    name: str
    kind: str
    why: str


def old_record(content: RecordDict) -> str | None:
    """Return the name of the first record of Flower's old API; None if there is no such record."""
    names: Mapping[str, object] = content.__dict__["_data"]
    return next((name for name in names if name.startswith(OLD_API)), None)


def holds_floats(arrays: ArrayRecord) -> bool:
    """Return whether at least one array has a float type."""
    return any(is_float(type_of(array)) for array in arrays.values())


class Uncompressed:
    """Counts records that are sent uncompressed in the first calls of a grid, and warns of them.

    The warning is logged at the replies to the second call with messages of one type, or at the
    third call. If nothing was compressed, a warning is logged at the first replies, because there
    may be no other replies. The later warning then mentions only records that the first did not.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._found, self._largest = (
            Counter[UncompressedRecord](),
            Counter[UncompressedRecord](),
        )  # total bytes; bytes of the largest record
        self._calls = Counter[str]()  # number of calls, by type of message
        self._said = set[UncompressedRecord]()
        self._done = False

    @property
    def open(self) -> bool:
        """Whether the grid's calls are still examined; only the first calls are."""
        return not self._done and self._calls.total() <= MOST_CALLS

    def called(self, types: set[str]) -> None:
        """Count a call of the grid for each message type in it; warn at a type's third call."""
        if self.open and any(self._calls[each] > 1 for each in types):
            self._done = self._tell()
        self._calls.update(types)

    def answered(self) -> None:
        """Warn at the replies to a second call with messages of one type.

        If nothing was compressed, warn at the first replies.
        """
        if not self.open:
            return
        if any(count > 1 for count in self._calls.values()):
            self._done = self._tell()
        elif not self._said and not self._traffic.uplink_bytes + self._traffic.downlink_bytes:
            self._tell()

    def sent(self, type_: str, content: RecordDict, model: str | None) -> None:
        """Count a message's uncompressed records; `model`: the name of the compressed record."""
        seen = False
        for name, record, size in _records(content):
            why = NO_ARRAYS
            if isinstance(record, ArrayRecord):
                floats = holds_floats(record)
                why = SECOND if floats and (seen or model is not None) else NO_FLOATS
                seen = True
            if name != model:
                self._note(UncompressedRecord(False, type_, name, type(record).__name__, why), size)

    def whole(self, type_: str, name: str, size: int, why: str) -> None:
        """Count a message that holds the whole model uncompressed; `why`: the reason."""
        self._note(UncompressedRecord(False, type_, name, "ArrayRecord", why), size)

    def count_received(
        self, type_: str, content: RecordDict, model: str | None, asked: bool
    ) -> None:
        """Count a reply's uncompressed records.

        `model`: the name of the compressed record. `asked`: True if the message held a model.
        """
        for name, record, size in _records(content):
            why = NO_ARRAYS
            if isinstance(record, ArrayRecord):
                why = NO_FLOATS if not holds_floats(record) else NO_MODEL
                if holds_floats(record) and not type_.startswith("train"):
                    why = NOT_TRAINED
                elif holds_floats(record) and asked:
                    why = SECOND
            if name != model:
                self._note(UncompressedRecord(True, type_, name, type(record).__name__, why), size)

    def _note(self, passed: UncompressedRecord, size: int) -> None:
        self._found[passed] += size
        self._largest[passed] = max(size, self._largest[passed])

    def _tell(self) -> bool:
        """Warn of large uncompressed records that no earlier warning named.

        Return whether there are any.
        """
        traffic = self._traffic
        payloads = traffic.uplink_bytes + traffic.downlink_bytes
        others = traffic.uplink_other_bytes + traffic.downlink_other_bytes
        least, one = LEAST_SHARE * (payloads + others), LEAST_RECORD if payloads else 1
        heavy = {
            each: size
            for each, size in self._found.most_common(MOST_SAID)
            if size >= least
            and self._largest[each] >= one
            and each not in self._said
            # If at least the replies are compressed, uncompressed messages are the user's choice.
            and not (each.why == NO_DOWNLINK and traffic.uplink_bytes)
        }
        if heavy:
            self._said |= set(heavy)
            log.warning("not compressed: %s", "; ".join(_said(*each) for each in heavy.items()))
        return bool(heavy)


def _said(passed: UncompressedRecord, size: int) -> str:
    what = "replies to" if passed.reply else "messages of type"
    kind, name, type_ = passed.kind, passed.name[:40], passed.type[:40]
    return f"{kind} {name!r} of {what} {type_!r}, {size:,} bytes so far ({passed.why})"


def _records(content: RecordDict) -> list[tuple[str, ArrayRecord | object, int]]:
    """Return the name, the record and the bytes of each record except the header."""
    inside: Mapping[str, object] = content.__dict__["_data"]
    return [(name, record, _size(record)) for name, record in inside.items() if name != HEADER]


def _size(record: object) -> int:
    if not isinstance(record, ArrayRecord):
        return record_bytes(record)  # type: ignore[arg-type]
    arrays: list[Array] = list(record.values())
    return sum(len(array.data) for array in arrays)
