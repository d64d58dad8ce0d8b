"""How many bytes a message's content has: all its records, as they are sent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

PLAIN = "numpy.ndarray"  # the kind of Flower's own Arrays: others hold what stands for a model
FEW = 64  # values of a list, up to which it is cheaper to look at them than to serialise the record
MOST_KEPT, LONGEST = 4096, 1024  # lengths of records; characters of all names in such a one
_lengths: dict[Hashable, int] = {}


# bytes of a content: of Arrays that stand for a model in a form of their own (payloads), of the
# record that goes with them (a note), and of all that is in it
Size = tuple[int, int, int]


def other_than_payloads(size: Size) -> int:
    """Return the bytes of all but payloads and their note."""
    payloads, note, whole = size
    return whole - payloads - note


def size_of(content: RecordDict) -> int:
    """Return the bytes of a content: of the data of all Arrays, and of its other records.

    Those count as Flower serialises them.
    """
    return measured(content, "")[2]


def measured(content: RecordDict, note: str) -> Size:
    """Return the bytes of a content, counted as by `size_of`; `note`: a record's name."""
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
    """Return the length of a record as Flower serialises it; 0 for what it cannot send.

    To serialise one takes 70 µs, and its length depends on names, and on lengths of values, alone:
    it is measured once for all alike.
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
    except (ValueError, TypeError, OverflowError):  # it never leaves this process
        return 0
    return length


def _alike(value: Any) -> Hashable:
    """Return what all values have in common that are as long; None: it is not worth looking."""
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
