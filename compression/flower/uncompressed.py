"""Warns of records that travel uncompressed: once each, in one line, with reason and remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from logging import getLogger
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, RecordDict

from .headers import NOTE
from .message_size import record_bytes
from .records import type_of
from .tensor_split import is_float
from .traffic import Traffic

log = getLogger("edgewire")
MOST_CALLS = 20  # only so many calls of the grid are examined
LEAST_SHARE = 0.1  # records with a smaller share of all bytes cause no warning
LEAST_RECORD = 512  # bytes: smaller records cause no warning, unless nothing is compressed
MOST_SAID = 3  # records per warning
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
    """An uncompressed record: of messages of a type, or of replies to them."""

    reply: bool
    type: str
    name: str
    kind: str
    why: str


def old_record(content: RecordDict) -> str | None:
    """Return the name of a record that Flower's old API sends; None if there is none."""
    names: Mapping[str, object] = content.__dict__["_data"]
    return next((name for name in names if name.startswith(OLD_API)), None)


def holds_floats(arrays: ArrayRecord) -> bool:
    """Return whether any array is one of floats."""
    return any(is_float(type_of(array)) for array in arrays.values())


class Uncompressed:
    """Counts uncompressed records in the first calls of a grid, and logs one warning about them.

    If nothing at all was compressed, it warns with the first replies, because there may be no
    others. In that case records found up to the third call of a kind get a second warning.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._found, self._largest = (
            Counter[UncompressedRecord](),
            Counter[UncompressedRecord](),
        )  # bytes; of one
        self._calls = Counter[str]()  # by the type of their messages
        self._said = set[UncompressedRecord]()
        self._done = False

    @property
    def open(self) -> bool:
        """Whether records are still examined."""
        return not self._done and self._calls.total() <= MOST_CALLS

    def called(self, types: set[str]) -> None:
        """Note a call that sends messages of these types; the third call warns of earlier ones."""
        if self.open and any(self._calls[each] > 1 for each in types):
            self._done = self._tell()
        self._calls.update(types)

    def answered(self) -> None:
        """Warn if replies to a second call are received, or if nothing was compressed so far."""
        if not self.open:
            return
        if any(count > 1 for count in self._calls.values()):
            self._done = self._tell()
        elif not self._said and not self._traffic.uplink_bytes + self._traffic.downlink_bytes:
            self._tell()

    def sent(self, type_: str, content: RecordDict, model: str | None) -> None:
        """Note a message's records; `model`: the name of the compressed record."""
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
        """Note a message that holds the whole model."""
        self._note(UncompressedRecord(False, type_, name, "ArrayRecord", why), size)

    def count_received(
        self, type_: str, content: RecordDict, model: str | None, asked: bool
    ) -> None:
        """Note a reply's records; `model`: as in `sent`; `asked`: its message held a model."""
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
        """Warn of large records that were not mentioned before; return whether there are any."""
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
            # No downlink is the user's choice if at least the replies are compressed.
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
    """Return records with their names and bytes, without the header."""
    inside: Mapping[str, object] = content.__dict__["_data"]
    return [(name, record, _size(record)) for name, record in inside.items() if name != NOTE]


def _size(record: object) -> int:
    if not isinstance(record, ArrayRecord):
        return record_bytes(record)  # type: ignore[arg-type]
    arrays: list[Array] = list(record.values())
    return sum(len(array.data) for array in arrays)
