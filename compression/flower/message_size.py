"""Counts the bytes of all records in a message's content, as Flower sends them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..base import PayloadError
from ..wire_header import Reader

PLAIN = "numpy.ndarray"  # `stype` of Flower's own Arrays; Arrays with another stype hold payloads
# `stype` of an Array with compact records before a payload: their length, the records, the payload.
CARRIER = "edgewire.records+payload"
_FIXED = (float, bool)  # values of one length
FEW = 64  # up to this length it is cheaper to read a list's values than to serialise the record
# The most cached lengths; the most characters in all names of a record with a cached length.
MOST_KEPT, LONGEST = 4096, 1024
_lengths: dict[Hashable, int] = {}


# Bytes in a message's content: in its payloads, in its header's record, and in all its records.
Size = tuple[int, int, int]


def other_than_payloads(size: Size) -> int:
    """Return a content's bytes without those of its payloads and its header."""
    payloads, header, whole = size
    return whole - payloads - header


def size_of(content: RecordDict) -> int:
    """Return the bytes of a content: the data of all Arrays, and the other records serialised."""
    return measured(content, "")[2]


def measured(content: RecordDict, header: str) -> Size:
    """Return the bytes of a content's payloads, of its record `header`, and of all its records."""
    payloads = noted = whole = 0
    for name, record in content.__dict__["_data"].items():
        if ArrayRecord not in type(record).__mro__:  # `isinstance` takes three calls
            size = record_bytes(record)
            noted += size if name == header else 0
            whole += size
            continue
        for array in record.__dict__["_data"].values():
            kind, size = array.stype, len(array.data)
            before = _before_payload(array.data) if kind == CARRIER else 0
            noted += before
            payloads += size - before if kind != PLAIN else 0
            whole += size
    return payloads, noted, whole


def _before_payload(data: bytes) -> int:
    """Return how many bytes of a carrier stand before its payload, at most all of them."""
    reader = Reader(memoryview(data))
    try:
        return min(reader.varint() + reader.position, len(data))
    except PayloadError:
        return len(data)


def record_bytes(record: ConfigRecord | MetricRecord) -> int:
    """Return the bytes of a record as Flower serialises it; 0 if Flower cannot serialise it.

    Serialising takes 70 µs. The length depends only on the names and on the lengths of the values.
    So the length is measured once and cached for all records with equal names and lengths.
    """
    values = record.__dict__["_data"]
    try:
        key = type(record), *values, *map(_alike, values.values())
        if (length := _lengths.get(key)) is None:
            length = len(record.deflate())
            if None not in key and sum(map(len, values)) <= LONGEST:
                if len(_lengths) >= MOST_KEPT:
                    _lengths.clear()
                _lengths[key] = length
    except (ValueError, TypeError, OverflowError):  # Flower cannot send this record
        return 0
    return length


def _alike(value: Any) -> Any:
    """Return a key equal for values of one serialised length; None if it costs more than that."""
    kind = type(value)
    if kind in _FIXED:
        return kind
    if kind is int:
        return (~value if value < 0 else value).bit_length()
    if kind is bytes:
        return kind, len(value)
    if kind is str:
        return kind, len(value.encode())
    if kind is list and value and type(value[0]) is float:
        return kind, float, len(value)
    if kind is list and len(value) <= FEW:
        return kind, tuple(map(_alike, cast(list[Any], value)))
    return None
