"""Headers, and the compact form of records: round trips, hostile bytes, sizes."""

import enum
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import headers
from edgewire.compression.flower.compact_records import (
    COMPACT,
    FORMS,
    LONGEST,
    NAMES,
    compact,
    restored,
)
from edgewire.compression.flower.headers import (
    HEADER,
    DownlinkHeader,
    TrainConfig,
    UplinkHeader,
    read,
    written,
)
from edgewire.compression.flower.message_size import CARRIER, measured, size_of
from edgewire.compression.flower.records import array_of, filled, payload_records, payloads_in
from edgewire.compression.wire_header import varint

FIELDS = [(kind, name) for kind in (DownlinkHeader, UplinkHeader) for name in kind._fields]
VALUES = {"int": 1, "float": 1.0, "bytes": b"12345678", "list[float]": [1.0, 0.5], "list[int]": [1],
          "list[str]": ["a"]}  # fmt: skip


def kind_of(kind, name):
    said = kind.__annotations__[name]
    return str(getattr(said, "__forward_arg__", said)).removesuffix(" | None")


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_what_is_written_is_read(kind, name):
    header = kind(**{name: VALUES[kind_of(kind, name)]})
    assert read(RecordDict({HEADER: written(header)}), kind) == header


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 1, True, "1", [1.0]])
def test_a_density_factor_that_is_none_is_refused(value):
    record = ConfigRecord({"density_factor": value})
    with pytest.raises(PayloadError, match="density_factor"):
        read(RecordDict({HEADER: record}), DownlinkHeader)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", 1 << 62])
def test_most_steps_that_are_no_count_are_refused(value):
    with pytest.raises(PayloadError, match="most-steps"):
        TrainConfig.of({"lr": 0.1, "number": 1, "most-steps": value})


INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
FLOATS = st.floats() | st.floats(width=32)
NUMBERS = INTEGERS | FLOATS | st.lists(INTEGERS) | st.lists(FLOATS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.sampled_from(NAMES) | TEXT
OTHERS = st.booleans() | TEXT | st.binary()
LISTS = st.lists(st.booleans()) | st.lists(TEXT) | st.lists(st.binary())
METRICS = st.dictionaries(KEYS, NUMBERS).map(MetricRecord)
CONFIGS = st.dictionaries(KEYS, NUMBERS | OTHERS | LISTS).map(ConfigRecord)


def in_form(form):
    """Return contents with the records and names of a form, and any values."""
    records = {}
    for name, metric, keys in form:
        values = st.fixed_dictionaries(dict.fromkeys(keys, NUMBERS if metric else NUMBERS | OTHERS))
        records[name] = values.map(MetricRecord if metric else ConfigRecord)
    return st.fixed_dictionaries(records).map(RecordDict)


ANY = st.dictionaries(KEYS, METRICS | CONFIGS, max_size=4).map(RecordDict)
CONTENTS = ANY | st.sampled_from(FORMS).flatmap(in_form)


PAYLOADS = st.dictionaries(TEXT, st.binary(max_size=300) | st.just(bytes(LONGEST + 1)), max_size=3)


def plain(content):
    """Return a content's values with their types; NaN becomes equal to itself."""
    return [
        (name, type(record), [(key, type(value), repr(value)) for key, value in record.items()])
        for name, record in content.items()
    ]


def bytes_of(content):
    return content[HEADER][COMPACT]


def carried(data, payload=b"payload"):
    """Return a content with an Array of these bytes, which stand before a payload."""
    return RecordDict({"arrays": ArrayRecord({"p": array_of(data + payload, CARRIER)})})


def holding(data):
    return RecordDict({HEADER: ConfigRecord({COMPACT: data})})


@given(CONTENTS)
def test_the_records_are_restored(content):
    made = compact(content)
    assert restored(made) is not made
    assert plain(restored(made)) == plain(content)


@given(CONTENTS, PAYLOADS)
def test_records_stand_before_a_short_payload(content, payloads):
    """All bytes are counted: those of the records as the header, those of the payloads."""
    whole = RecordDict({"the payloads": payload_records(payloads), **content})
    made = compact(whole)
    assert restored(made) is not made
    assert plain(restored(made)) == plain(whole)
    first = next(iter(payloads.values()), None)
    short = first is not None and len(first) <= LONGEST
    assert short == (HEADER not in made)
    size = sum(map(len, payloads.values()))
    assert payloads_in(made) == len(payloads)
    assert measured(made, HEADER) == (size, size_of(made) - size, size_of(made))
    if short:
        alone = len(bytes_of(compact(content)))
        assert size_of(made) - size - alone == len(varint(alone))


BYTES = st.binary(max_size=60)


@given(BYTES | st.builds(bytes.__add__, st.sampled_from([b"\1", b"\2", b"\3", b"\5"]), BYTES))
def test_any_bytes_are_restored_or_refused(data):
    for hostile in (holding(data), carried(data), carried(varint(len(data)) + data)):
        payloads, noted, whole = measured(hostile, HEADER)
        assert payloads + noted == whole
        try:
            content = restored(hostile)
        except PayloadError:
            continue
        for record in content.values():  # Flower accepts the names and the types
            type(record)(dict(record))


def test_a_carrier_s_own_length_is_not_believed():
    long = varint(1 << 40)
    assert measured(carried(long, b""), HEADER) == (0, len(long), len(long))
    with pytest.raises(PayloadError, match="ends"):
        restored(carried(long))


def test_records_before_two_payloads_are_refused():
    twice = payload_records({"a": b"", "b": b""})
    arrays = {name: array_of(varint(1) + b"\1", CARRIER) for name in twice}
    with pytest.raises(PayloadError, match="two payloads"):
        restored(RecordDict({"arrays": ArrayRecord(arrays)}))


@given(CONTENTS.filter(len), st.data())
def test_cut_bytes_are_refused_or_hold_fewer_records(content, data):
    whole = bytes_of(compact(content))
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = restored(holding(part))
    except PayloadError:
        return
    assert plain(found) == plain(content)[: len(found)]
    assert len(found) < len(content)


ONE = b"\1\1\2"  # one ConfigRecord "edgewire" with one value; then come its name and the value


@pytest.mark.parametrize(
    ("data", "said"),
    {
        "format 0": (b"\0", "format of another release"),
        "a form's end": (b"\2\1\2", "ends"),
        "no byte": (b"", "ends"),
        "a record twice": (b"\1\1\0\1\0", "a name twice"),
        "too many values": (b"\1\1\xfe\xff\xff\x7f", "end within a record"),
        "a list in a list": (ONE + b"\1\xf8\1\xf8\0", "unknown kind, 248"),
        "a truth as a metric": (b"\1\1\3\1\xf5", "must be numbers"),
        "another format": (b"\x08", "format of another release"),
        "text in a form's metric": (b"\2\1\2\3\xf6\1a\1\2\3", "must be numbers"),
        "more than a form": (b"\2\1\2\3\4\5\6\7\1", "go on after"),
        "an unknown name": (b"\1\x7f\0", "name of another release"),
        "a value twice": (b"\1\1\4\1\1\1\1", "a name twice"),
        "an unknown tag": (ONE + b"\1\xff", "unknown kind, 255"),
        "a long list": (ONE + b"\1\xf8\x7f\1", "end within a list"),
        "a list of two types": (ONE + b"\1\xf8\2\1\xf4", "several types"),
        "no UTF-8": (ONE + b"\1\xf6\1\xff", "not UTF-8"),
        "text as a metric": (b"\1\1\3\1\xf6\1a", "must be numbers"),
        "a number of 70 bits": (ONE + b"\1\xf0" + b"\xff" * 10 + b"\1", "more than 63 bits"),
    }.values(),
    ids=lambda each: "" if isinstance(each, bytes) else each,
)
def test_hostile_bytes_are_refused_in_one_line(data, said):
    with pytest.raises(PayloadError, match=said):
        restored(holding(data))


@pytest.mark.parametrize("values", [{COMPACT: "text"}, {COMPACT: b"\1", "number": 1}])
def test_a_record_of_other_values_is_refused(values):
    with pytest.raises(PayloadError, match="the only value"):
        restored(RecordDict({HEADER: ConfigRecord(values)}))


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, "\ud800", None, [[1]]])
def test_a_value_that_cannot_be_sent_is_refused(value):
    with pytest.raises(PayloadError):
        compact(RecordDict({"config": filled(ConfigRecord, {"a": value})}))


def test_the_first_names_are_these_in_this_order():
    """Their order is part of the format."""
    made = compact(RecordDict({name: ConfigRecord() for name in NAMES}))
    assert bytes_of(made) == b"\1" + b"".join(bytes((i + 1, 0)) for i in range(len(NAMES)))
    assert NAMES[:4] == ("edgewire", "config", "metrics", "number")
    assert NAMES[18:22] == ("untied", "lr", "proximal-mu", "server-round")
    assert NAMES[22:28] == (
        "loss", "accuracy", "num-examples", "num-steps", "seconds", "drift"
    )  # fmt: skip


def test_each_name_of_this_project_takes_one_byte():
    metrics = (headers.LOSS, headers.ACCURACY, headers.EXAMPLES, headers.STEPS, headers.DRIFT)
    config = TrainConfig(0.1, 1, 0.5).config()
    used = {*DownlinkHeader._fields, *UplinkHeader._fields, *metrics, headers.SECONDS, *config}
    assert used <= {*NAMES}
    assert len(NAMES) == len({*NAMES}) < 127


class Kind(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.375),
        np.str_("a"),
        Kind.ONE,
        Word.ONE,
        [np.float64(1), np.float64(2)],
        [0.5] * 70_000,
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_that_flower_takes_are_restored_as_plain_ones(value):
    """Flower checks with `isinstance`, and makes plain values of subclasses."""
    content = RecordDict({"config": ConfigRecord({"a": value})})
    here = restored(compact(content))["config"]["a"]
    there = ConfigRecord.inflate(content["config"].deflate())["a"]
    assert here == there
    assert type(here) is type(there)
