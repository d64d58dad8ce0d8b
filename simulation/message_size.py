"""The size of a message's content in bytes: all its records, as they are sent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

PLAIN = "numpy.ndarray"  # the `stype` of Flower's own Arrays; others hold payloads
FEW = 64  # values of a list: up to so many, checking them is cheaper than serialising the record
MOST_KEPT, LONGEST = 4096, 1024  # cached record lengths; characters of all names in such a record
_lengths: dict[Hashable, int] = {}


# Bytes of a content: of its payloads (Arrays of another `stype`), of the record that accompanies
# them (the note), and of all its records.
Size = tuple[int, int, int]


def other_than_payloads(size: Size) -> int:
    """Return the bytes without those of the payloads and their note."""
    payloads, note, whole = size
    return whole - payloads - note


def size_of(content: RecordDict) -> int:
    """Return the bytes of a content: those of all Arrays' data and of its other records.

    The other records count as Flower serialises them.
    """
    return measured(content, "")[2]


def measured(content: RecordDict, note: str) -> Size:
    """Return a content's `Size`, counted as by `size_of`; `note`: the name of the note's record."""
    payloads = noted = whole = 0
    for name, record in content.__dict__["_data"].items():
        if not isinstance(record, ArrayRecord):
            size = record_bytes(record)
            noted += size if name == note else 0
            whole += size
            continue
        for array in record.values():
            size = len(array.data)
            payloads += size if array.stype != PLAIN else 0
            whole += size
    return payloads, noted, whole


def record_bytes(record: ConfigRecord | MetricRecord) -> int:
    """Return the bytes of a record as Flower serialises it; 0 for one that it cannot serialise.

    Serialising takes 70 µs, and the length depends only on the names and on the lengths of the
    values: the function measures it once for all records with equal ones.
    """
    values = record.__dict__["_data"]
    try:
        key = (type(record), *values, *map(_alike, values.values()))
        if (length := _lengths.get(key)) is None:
            length = len(record.deflate())
            if None not in key and sum(map(len, values)) <= LONGEST:
                if len(_lengths) >= MOST_KEPT:
                    _lengths.clear()
                _lengths[key] = length
    except (ValueError, TypeError, OverflowError):  # such a record never leaves this process
        return 0
    return length


def _alike(value: Any) -> Hashable:
    """Return a key that values of equal serialised length share; None: serialise the record."""
    kind = type(value)
    if kind is float or kind is bool:
        return kind.__name__
    if kind is int:
        return kind, (~value if value < 0 else value).bit_length()
    if kind is bytes:
        return kind, len(value)
    if kind is str:
        return kind, len(value.encode())
    if kind is list and value and type(value[0]) is float:
        return kind, float, len(value)
    if kind is list and len(value) <= FEW:
        return kind, tuple(map(_alike, cast(list[Any], value)))
    return None
