"""Small and large objects arrive at another process unchanged."""

from contextlib import closing
from multiprocessing import Pipe

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.metadata import Metadata

from edgewire.compression.flower import FlatArray, flat_record
from edgewire.machine.errors import EngineError
from edgewire.simulation.workers import channel
from edgewire.simulation.workers.channel import Channel, Folders

MEGABYTE = 1 << 20
METADATA = Metadata(7, "1-2", 0, 1, "", "3", 4.5, 6.0, "train.step")


@pytest.fixture
def pair():
    with closing(Folders()) as folders:
        here, there = Pipe()
        yield Channel(here, folders.paths, "x", 2), Channel(there, folders.paths, "x", 2)


def test_records_arrive_whole(pair):
    sender, receiver = pair
    for size in (0, 10, 40_000, 3_000_000, 50_000):
        data = np.random.default_rng(size).integers(0, 255, size, np.uint8).tobytes()
        content = RecordDict(
            {
                "arrays": ArrayRecord({"payload": Array("uint8", (size,), "test", data)}),
                "flat": flat_record(np.arange(size // 4, dtype=np.float32)),
                "metrics": MetricRecord({"loss": 0.5}),
            }
        )
        sender.send((content, METADATA))
        got, metadata = receiver.receive()
        assert type(metadata) is Metadata
        assert vars(metadata) == vars(METADATA)
        assert (got["arrays"], got["metrics"]) == (content["arrays"], content["metrics"])
        assert type(got["arrays"]["payload"].data) is bytes
        assert isinstance(got["flat"]["flat"], FlatArray)
        np.testing.assert_array_equal(got["flat"]["flat"].vector, np.arange(size // 4))


class OwnConfig(ConfigRecord):
    """A record of an app's own class."""


def test_received_records_have_their_class_and_flowers_checks(pair):
    sender, receiver = pair
    sent = RecordDict({"a": ConfigRecord({"x": [1, 2]}), "b": MetricRecord({"y": 0.5})})
    sent["own"], sent["none"] = OwnConfig({"z": b"3"}), ArrayRecord()
    sender.send(sent)
    got = receiver.receive()
    assert got == sent
    assert {name: type(record) for name, record in got.items()} == {
        name: type(record) for name, record in sent.items()
    }
    for record, value in ((got, 1), (got["a"], {}), (got["b"], "text"), (got["none"], b"")):
        with pytest.raises(TypeError):
            record["new"] = value


def test_two_objects_may_be_under_way_and_none_overwrites_another(pair):
    sender, receiver = pair
    received = []
    for turn in range(5):
        for i in (0, 1):
            sender.send(Array("uint8", (1,), "t", bytes([turn, i]) * 40_000))
        received += [receiver.receive(), receiver.receive()]
    expected = [bytes([turn, i]) * 40_000 for turn in range(5) for i in (0, 1)]
    assert [array.data for array in received] == expected


def test_a_message_that_is_too_large_has_no_effect(pair, monkeypatch):
    monkeypatch.setattr(channel, "disk_usage", lambda folder: (MEGABYTE, 0, MEGABYTE))
    sender, receiver = pair
    large, small = (
        ArrayRecord({"a": Array("uint8", (n,), "t", bytes(n))}) for n in (2 * MEGABYTE, 1 << 16)
    )
    for _ in range(3):
        with pytest.raises(EngineError, match="no room"):
            sender.send(large)
        sender.send(small)
        assert receiver.receive() == small
