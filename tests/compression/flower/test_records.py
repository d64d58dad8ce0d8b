"""Records with flat models, payloads and replies are those of Flower."""

import numpy as np
import pytest
from flwr.app import Array, Message, MetricRecord, RecordDict

from edgewire.compression.flower import FlatArray, layout_of, to_arrays, to_vector
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
