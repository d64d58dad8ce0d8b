"""Puts a message's ConfigRecords and MetricRecords into few bytes, before its payload if any.

Flower serialises each value with its name. A message for training of this project's has about eight
short values, which take about 160 bytes. In compact form they take about 20 bytes. The header of a
message (`headers.py`) is one of the records.

The bytes stand before the first payload, in the same Array, whose `stype` is then `CARRIER`. A
ConfigRecord of Flower's for them would take 23 bytes. The payload is copied for that. Messages
whose first payload is longer than `LONGEST` bytes, and messages without payload, have this
ConfigRecord. All other arrays of a message do not change.

    array   = varint(bytes of content) content payload
    content = NAMED record*, or NAMED + number in FORMS, from 1, and the form's values in its order
    record  = name  varint(2 * number of values + kind: 0 for a ConfigRecord, 1 for a MetricRecord)
              (name value)*
    name    = varint(position in NAMES + 1), or 0 varint(length) UTF-8
    value   = a byte below INT for this integer, or one of the tags below and what it says
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..base import PayloadError
from ..wire_header import Reader, varint
from .headers import EXAMPLES, HEADER, LOSS, NAMES, SECONDS, STEPS
from .message_size import CARRIER
from .records import STYPE, array_of, filled, values_of

NAMED = 1  # the first byte: names and values come; another release may read fewer names, or others
COMPACT = ""  # the name of the only value in the record HEADER of a content without carrier
LONGEST = 1 << 16  # bytes: the longest payload that is copied behind the records
_CODES = {name: varint(position + 1) for position, name in enumerate(NAMES)}
# Tags of values. A byte below INT is an integer by itself.
INT, NEGATIVE, FLOAT32, FLOAT64, FALSE, TRUE, TEXT, BYTES, LIST, UINT64, FLOAT16 = range(240, 251)
Form = tuple[tuple[str, bool, tuple[str, ...]], ...]
_METRICS = ("metrics", True, (LOSS, EXAMPLES, STEPS, SECONDS))
_TO_NODE = ("number", "applied", "workers", "version", "base")
_ORDERS = ("config", False, ("lr", "number"))
_TIMED = ("config", False, ("lr", "number", "most-steps"))
# Records that most messages of a run have: their names, whether they are MetricRecords, and the
# names of their values. Their order is part of the format.
FORMS: tuple[Form, ...] = (
    (_METRICS, (HEADER, False, ("number", "sequence", "version"))),
    (_METRICS, (HEADER, False, ("number", "version"))),
    (_METRICS, (HEADER, False, ("number", "whole"))),
    (_ORDERS, (HEADER, False, (*_TO_NODE, "rates"))),
    (_TIMED, (HEADER, False, (*_TO_NODE, "rates"))),
    (_ORDERS, (HEADER, False, (*_TO_NODE, "checksum"))),
)
_NUMBERS = {form: NAMED + 1 + place for place, form in enumerate(FORMS)}
Place = tuple[str, str, Array]  # an Array, with its record's name and its own
_HALF, _SINGLE, _DOUBLE = struct.Struct("<e"), struct.Struct("<f"), struct.Struct("<d")
_LARGE = struct.Struct("<Q")
_PACKED = {UINT64: _LARGE, FLOAT16: _HALF, FLOAT32: _SINGLE, FLOAT64: _DOUBLE}
_MOST_HALF, _LARGEST = 65504.0, float.fromhex("0x1.fffffep+127")  # largest float16, float32


def compact(content: RecordDict) -> RecordDict:
    """Return a content with the same payloads and arrays, and all other records in compact form.

    Raises `PayloadError` for a value that Flower does not serialise either, such as an integer of
    70 bits. No arrays may have the header's name or the kind `CARRIER`.
    """
    arrays, others = dict[str, Any](), dict[str, Any]()
    for name, record in values_of(content).items():
        (arrays if isinstance(record, ArrayRecord) else others)[name] = record
    written = _written_records(others)
    made = filled(RecordDict, arrays)
    place = _first(made, STYPE)
    if place is None or len(place[2].data) > LONGEST:
        return filled(RecordDict, {**arrays, HEADER: filled(ConfigRecord, {COMPACT: written})})
    return _with_array(made, place, CARRIER, varint(len(written)) + written + place[2].data)


def restored(content: RecordDict) -> RecordDict:
    """Return the content that `compact` was given, with the arrays first.

    Any other content is returned unchanged.

    Raises `PayloadError` for bytes that `compact` does not write.
    """
    header = values_of(content).get(HEADER)  # beside a carrier there is none
    place = _first(content, CARRIER) if header is None else None
    if place is not None:
        carrier = Reader(memoryview(place[2].data))
        data = carrier.take(carrier.varint())
        content = _with_array(content, place, STYPE, place[2].data[carrier.position :])
        if _first(content, CARRIER) is not None:
            raise PayloadError("its compact records stand before two payloads")
        records = values_of(content)
    elif isinstance(header, ConfigRecord) and COMPACT in values_of(header):  # in a record alone
        records = {k: record for k, record in values_of(content).items() if k != HEADER}
        alone = values_of(header)
        if len(alone) > 1 or type(alone[COMPACT]) is not bytes:
            raise PayloadError("its compact records must be the only value of a record, as bytes")
        data = memoryview(alone[COMPACT])
    else:
        return content
    return filled(RecordDict, {**records, **_read_records(data, records)})


def _written_records(records: dict[str, Any]) -> bytes:
    """Return the bytes of ConfigRecords and MetricRecords, by their names."""
    form = tuple((k, isinstance(r, MetricRecord), tuple(values_of(r))) for k, r in records.items())
    number = _NUMBERS.get(form)
    parts = [bytes((NAMED if number is None else number,))]
    for name, record in records.items():
        values = values_of(record)
        if number is None:
            parts += [_named(name), varint(2 * len(values) + isinstance(record, MetricRecord))]
        for key, value in values.items():
            parts += [b"" if number is not None else _named(key), _written(key, value)]
    return b"".join(parts)


def _read_records(data: memoryview, beside: dict[str, Any]) -> dict[str, Any]:
    """Return the records in untrusted bytes; `beside`: the message's other records."""
    reader = Reader(data)
    number = reader.byte() - NAMED
    if not 0 <= number <= len(FORMS):
        raise PayloadError("its compact records have a format of another release")
    records = dict[str, Any]()
    for name, metric, keys in FORMS[number - 1] if number else _read_names(reader):
        values = {key or _name(reader): _value(reader) for key in keys}
        if name in records or name in beside or len(values) < len(keys):
            raise PayloadError("its compact records hold a name twice")
        records[name] = _filled(metric, values)
    if reader.position < len(reader.view):
        raise PayloadError("its compact records go on after the last")
    return records


def _read_names(reader: Reader) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Read each record's name and kind; the keys, here "", stand before the values."""
    while reader.position < len(reader.view):
        name = _name(reader)
        count, kind = divmod(reader.varint(), 2)
        if count > len(reader.view) - reader.position:
            raise PayloadError("its compact records end within a record")
        yield name, bool(kind), ("",) * count


def _filled(metric: bool, values: dict[str, Any]) -> ConfigRecord | MetricRecord:
    if metric and not all(map(_is_metric, values.values())):
        raise PayloadError("its compact metrics must be numbers, or lists of numbers")
    return filled(MetricRecord, values) if metric else filled(ConfigRecord, values)


def _first(content: RecordDict, kind: str) -> Place | None:
    """Return where the first Array of a kind (`stype`) is; None if there is none."""
    for name, record in values_of(content).items():
        if ArrayRecord in type(record).__mro__:  # `isinstance` takes three calls
            for key, array in values_of(record).items():
                if array.stype == kind:
                    return name, key, array
    return None


def _with_array(content: RecordDict, place: Place, kind: str, data: bytes) -> RecordDict:
    """Return a content in which the Array at a place is of another kind and holds `data`."""
    name, key, _ = place
    records = values_of(content)
    arrays = {**values_of(records[name]), key: array_of(data, kind)}
    return filled(RecordDict, {**records, name: filled(ArrayRecord, arrays)})


def _named(name: str) -> bytes:
    return _CODES.get(name) or b"\0" + _text(name)


def _text(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(f"the text {text[:40]!r} in a message is not Unicode") from error
    return varint(len(data)) + data


def _written(name: str, value: Any) -> bytes:
    """Return a value's bytes; `name`: its name, for an error.

    As in Flower, numbers and text may be of a subclass, such as numpy's float64.
    """
    if isinstance(value, bool):
        return bytes((TRUE if value else FALSE,))
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        number = int(value)
        if number < 0:
            return bytes((NEGATIVE,)) + varint(~number)
        if number >= 1 << 63:
            return bytes((UINT64,)) + _LARGE.pack(number)
        return bytes((number,)) if number < INT else bytes((INT,)) + varint(number)
    if isinstance(value, float):
        if abs(value) <= _MOST_HALF and _HALF.unpack(half := _HALF.pack(value))[0] == value:
            return bytes((FLOAT16,)) + half
        if abs(value) <= _LARGEST and _SINGLE.unpack(single := _SINGLE.pack(value))[0] == value:
            return bytes((FLOAT32,)) + single
        return bytes((FLOAT64,)) + _DOUBLE.pack(value)
    if isinstance(value, str):
        return bytes((TEXT,)) + _text(str.__str__(value))
    if isinstance(value, bytes):
        return bytes((BYTES,)) + varint(len(value)) + value
    if isinstance(value, list) and not any(isinstance(each, list) for each in value):
        return bytes((LIST,)) + varint(len(value)) + b"".join(_written(name, v) for v in value)
    raise PayloadError(
        f"the value {name[:40]!r} in a message cannot be sent in compact form "
        f"(compact_records): {repr(value)[:80]}"
    )


def rounded(value: float) -> float:
    """Return a value that takes fewer bytes: the nearest float16, or float32 beyond its range."""
    kind = _HALF if abs(value) <= _MOST_HALF else _SINGLE
    found: float = kind.unpack(kind.pack(value))[0]
    return found


def _name(reader: Reader) -> str:
    code = reader.varint()
    if code > len(NAMES):
        raise PayloadError("its compact records have a name of another release")
    return NAMES[code - 1] if code else _read_text(reader)


def _read_text(reader: Reader) -> str:
    try:
        return str(reader.take(reader.varint()), "utf-8")
    except UnicodeDecodeError as error:
        raise PayloadError("its compact records hold text that is not UTF-8") from error


def _value(reader: Reader, *, in_list: bool = False) -> Any:
    tag = reader.byte()
    if tag < INT:
        return tag
    if tag == INT:
        return reader.varint()
    if tag == NEGATIVE:
        return ~reader.varint()
    if tag in _PACKED:
        return _PACKED[tag].unpack(reader.take(_PACKED[tag].size))[0]
    if tag in (FALSE, TRUE):
        return tag == TRUE
    if tag == TEXT:
        return _read_text(reader)
    if tag == BYTES:
        return bytes(reader.take(reader.varint()))
    if tag == LIST and not in_list:
        count = reader.varint()
        if count > len(reader.view) - reader.position:
            raise PayloadError("its compact records end within a list")
        values = [_value(reader, in_list=True) for _ in range(count)]
        if len({*map(type, values)}) > 1:
            raise PayloadError("its compact records hold a list of several types")
        return values
    raise PayloadError(f"its compact records hold a value of an unknown kind, {tag}")


def _is_metric(value: Any) -> bool:
    values = value if type(value) is list else [value]
    return {*map(type, values)} <= {int, float}
