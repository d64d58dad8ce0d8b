"""Records with flat models, payloads and replies are those of Flower; the size of a content."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower import FlatArray, layout_of, to_arrays, to_vector
from edgewire.compression.flower.message_size import (
    measured,
    other_than_payloads,
    record_bytes,
    size_of,
)
from edgewire.compression.flower.records import payload_record, reply_to
from tests.compression.flower.federation import initial


def test_arrays_to_vector_and_back():
    arrays = initial()
    arrays["count"] = Array(np.array(7, np.int64))  # like BatchNorm's num_batches_tracked
    arrays["double"] = Array(np.array([0.5, 2.0]))
    back = to_arrays(to_vector(arrays), layout_of(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name].numpy(), array.numpy())
        assert back[name].dtype == array.dtype


def test_a_flat_array_is_an_array():
    vector = np.arange(5, dtype=np.float32)
    flat, plain = FlatArray(vector), Array(vector)
    assert flat.data == plain.data
    assert flat.deflate() == plain.deflate()
    assert (flat.dtype, flat.shape, flat.stype) == (plain.dtype, plain.shape, plain.stype)
    flat.numpy()[0] = 9  # a fresh array, as in Flower
    assert vector[0] == 0


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("ttl", [10.0, 3600.0])
def test_a_reply_has_the_metadata_that_flower_gives_it(ttl):
    asked = Message(RecordDict(), 7, "train.step", ttl=ttl, group_id="3")
    asked.metadata.__dict__["_message_id"] = "id"
    content = RecordDict({"metrics": MetricRecord({"loss": 0.5})})
    made, theirs = reply_to(asked, content), Message(content, reply_to=asked)
    assert made.content is content
    assert not made.has_error()
    ours, flowers = vars(made.metadata), vars(theirs.metadata)
    assert ours.keys() == flowers.keys()
    for name in ("_created_at", "_ttl"):
        assert ours[name] == pytest.approx(flowers[name], abs=1.0)
    assert {k: v for k, v in ours.items() if k not in ("_created_at", "_ttl")} == {
        k: v for k, v in flowers.items() if k not in ("_created_at", "_ttl")
    }


def test_a_payloads_array_is_one_of_flower():
    array = next(iter(payload_record(b"abc").values()))
    assert vars(array).items() <= vars(Array("uint8", (3,), array.stype, b"abc")).items()
    assert array.deflate() == Array("uint8", (3,), array.stype, b"abc").deflate()


INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
NUMBERS = INTEGERS | st.floats()
ONES = [st.booleans(), INTEGERS, st.floats(), st.text(max_size=200), st.binary(max_size=300)]
LISTS = [st.lists(one, max_size=100) for one in ONES]
LISTS[1] = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=100)
NAMES = st.text(max_size=9)


@given(st.dictionaries(NAMES, st.one_of(*ONES, *LISTS), max_size=6))
def test_a_config_is_as_long_as_flower_serialises_it(values):
    record = ConfigRecord(values)
    assert record_bytes(record) == record_bytes(record) == len(record.deflate())


@given(st.dictionaries(NAMES, NUMBERS | LISTS[1] | LISTS[2], max_size=6))
def test_metrics_are_as_long_as_flower_serialises_them(values):
    record = MetricRecord(values)
    assert record_bytes(record) == record_bytes(record) == len(record.deflate())


def test_values_that_flower_cannot_send_raise_no_error():
    """Values that Flower cannot serialise may still be sent within one process."""
    assert record_bytes(MetricRecord({"a": 1 << 70})) == 0
    assert record_bytes(ConfigRecord({"a": "\udc80"})) == 0


@pytest.mark.parametrize("one", [127, 128, -128, -129, (1 << 63) - 1, -(1 << 63), 0, True, "é"])
def test_values_of_other_lengths_are_told_apart(one):
    for other in (0, 1, 63, 64, -64, -65, 1 << 40, False, 0.5, "", "ab", b"ab", [1], [0.5]):
        for value in (other, one, [one], [one, one]):
            record = ConfigRecord({"a": value})
            assert record_bytes(record) == len(record.deflate()), value


def test_a_content_is_all_of_its_records():
    plain, model = Array(np.zeros(100, np.float32)), bytes(1000)
    config, metrics = ConfigRecord({"model": model, "lr": 0.1}), MetricRecord({"loss": [0.5, 1.0]})
    records = {"arrays": ArrayRecord({"a": plain, "b": plain}), "c": config, "m": metrics}
    content = RecordDict(records)
    others = len(config.deflate()) + len(metrics.deflate())
    assert others > 1000
    assert size_of(content) == 2 * len(plain.data) + others
    content["payload"] = ArrayRecord({"p": Array("uint8", (7,), "its own", bytes(7))})
    content["note"] = ConfigRecord({"number": 1})
    note = len(content["note"].deflate())
    whole = 2 * len(plain.data) + others + 7 + note
    assert measured(content, "note") == (7, note, whole)
    assert other_than_payloads(measured(content, "note")) == whole - note - 7
    assert size_of(RecordDict()) == 0
