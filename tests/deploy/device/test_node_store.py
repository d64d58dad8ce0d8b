"""A node's stored state is restored exactly, is complete or absent, and stays small."""

import copy
import os

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from compression.flower.node.state import store_arrays, stored_arrays
from compression.flower.records import FlatArray
from deploy.device.node_store import NodeStore, open_node_store
from protocol.lineage import Checkpoint, RunLineage


def state_of(draw):
    state = RecordDict()
    store_arrays(state, "flat", {
        "wide": draw.normal(size=3000).astype(np.float32), "none": np.zeros((0, 3)),
        "number": np.array(draw.integers(9)), "every other": draw.integers(9, size=20)[::2],
        "bits": draw.random(size=(3, 5)) < 0.5,
    })  # fmt: skip
    state["plain"] = ArrayRecord({"x": Array(draw.normal(size=(3, 4)))})
    state["plain"]["odd"] = Array("uint8", (3,), "some.kind", b"abc")
    state["words"] = ConfigRecord({"a": [1, 2], "b": b"\0\1", "c": "d", "e": 0.1})
    state["metrics"] = MetricRecord({"n": int(draw.integers(2**40)), "x": [0.1, 2.0]})
    return state


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        if not isinstance(one[name], ArrayRecord):
            assert one[name] == other[name]
            continue
        assert list(one[name]) == list(other[name])
        for key, array in one[name].items():
            assert (array.dtype, tuple(array.shape), array.stype) == (
                other[name][key].dtype, tuple(other[name][key].shape), other[name][key].stype
            )  # fmt: skip
            assert array.data == other[name][key].data
    return True


def files(folder):
    return sorted(f.name for f in folder.iterdir())


def test_a_state_is_restored_after_every_reply(tmp_path):
    node_store = open_node_store(tmp_path)
    assert (node_store.answered, len(node_store.state)) == ([], 0)
    for number in range(5):
        state = state_of(np.random.default_rng(number))
        node_store.commit(state, f"m{number}", b"reply %d" % number)
        again = open_node_store(tmp_path)
        assert same(state, again.state)
        assert again.reply() == node_store.reply() == b"reply %d" % number
        assert again.answered == [f"m{n}" for n in range(number + 1)]
        node_store = again if number % 2 else node_store
    assert len(files(tmp_path)) == 1


def test_ids_of_messages_are_bounded(tmp_path):
    node_store = open_node_store(tmp_path)
    for number in range(40):
        node_store.commit(node_store.state, str(number), b"")
    assert open_node_store(tmp_path).answered == [str(n) for n in range(24, 40)]


def test_unchanged_values_are_not_written_again(tmp_path):
    node_store, state, small = open_node_store(tmp_path), RecordDict(), np.zeros(1)
    large = np.arange(1_000_000, dtype=np.float32)
    store_arrays(state, "large", {"x": large})
    node_store.commit(state, "a", b"")
    for number in range(5):
        store_arrays(state, "small", {"y": small + number})
        node_store.commit(state, str(number), b"some reply")
        written = max(tmp_path.iterdir(), key=lambda f: int(f.stem))
        assert written.stat().st_size < 2000
        assert len(files(tmp_path)) == 2
        if number == 2:
            node_store = open_node_store(tmp_path)
    assert same(state, open_node_store(tmp_path).state)
    large[7] = -1
    node_store.commit(state, "b", b"")
    assert len(files(tmp_path)) == 1
    assert stored_arrays(open_node_store(tmp_path).state, "large")["x"][7] == -1


def test_a_large_file_is_removed_if_little_of_it_is_used(tmp_path):
    node_store, state = open_node_store(tmp_path), RecordDict()
    store_arrays(state, "still", {"x": np.zeros(5000)})
    for number in range(5):
        store_arrays(state, "moving", {"x": np.full(50_000, number)})
        node_store.commit(state, str(number), b"")
        assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 450_000
    assert same(state, open_node_store(tmp_path).state)


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failed_write_leaves_the_state_unchanged(fails, tmp_path, monkeypatch):
    node_store, before = open_node_store(tmp_path), state_of(np.random.default_rng(1))
    node_store.commit(before, "a", b"first")
    before = copy.deepcopy(before)
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(28, "No space left on device")

        patch.setattr(os, fails, full)
        after = state_of(np.random.default_rng(2))
        with pytest.raises(OSError, match="No space"):
            node_store.commit(after, "b", b"second")
    again = open_node_store(tmp_path)
    assert same(before, again.state)
    assert (again.answered, again.reply()) == (["a"], b"first")
    assert fails == "replace" or "draft" not in files(tmp_path)
    node_store.commit(after, "b", b"second")
    assert same(after, open_node_store(tmp_path).state)


@pytest.mark.parametrize("at", [3, 12, 40, -1])
def test_damage_is_found_and_logged(at, tmp_path, caplog):
    node_store = open_node_store(tmp_path)
    node_store.commit(state_of(np.random.default_rng(1)), "a", b"reply")
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    found = open_node_store(tmp_path)
    assert (found.answered, len(found.state)) == ([], 0)
    assert "starts anew" in caplog.text
    found.commit(state_of(np.random.default_rng(3)), "b", b"next")
    assert open_node_store(tmp_path).answered == ["b"]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 60, -1])
@pytest.mark.parametrize("which", ["newest", "older"])
def test_a_cut_file_counts_as_damaged(size, which, tmp_path, caplog):
    """A stored file that is cut short counts as damaged, whichever of the files it is."""
    node_store, state = open_node_store(tmp_path), RecordDict()
    store_arrays(state, "large", {"x": np.arange(20_000)})
    node_store.commit(state, "a", b"reply")
    store_arrays(state, "small", {"y": np.zeros(1)})
    node_store.commit(state, "b", b"reply")
    first, second = sorted(tmp_path.iterdir(), key=lambda file: int(file.stem))
    file = second if which == "newest" else first
    file.write_bytes(file.read_bytes()[:size])
    found = open_node_store(tmp_path)
    assert (found.answered, len(found.state)) == ([], 0)
    (said,) = caplog.messages
    assert "is damaged" in said
    assert "starts anew" in said
    found.commit(state_of(np.random.default_rng(3)), "c", b"next")
    assert open_node_store(tmp_path).answered == ["c"]


def test_a_cut_state_of_a_checkpoint_is_dropped(tmp_path, caplog):
    node_store, state = open_node_store(tmp_path), RecordDict()
    store_arrays(state, "large", {"x": np.arange(20_000)})
    node_store.take_up(1, RunLineage(5, 5))
    node_store.commit(state, "a", b"reply")
    node_store.take_up(1, RunLineage(5, 5, (Checkpoint(5, 1),)))
    store_arrays(state, "large", {"x": np.zeros(20_000)})
    node_store.commit(state, "b", b"reply")
    first, _ = sorted(tmp_path.iterdir(), key=lambda file: int(file.stem))
    first.write_bytes(first.read_bytes()[:9])
    found = open_node_store(tmp_path)
    assert found.answered == ["a", "b"]
    found.take_up(1, RunLineage(5, 6, (Checkpoint(5, 1),)))
    assert len(found.state) == 0
    assert "the state at the run's checkpoint is damaged" in caplog.text


def test_a_file_with_another_number_is_no_state(tmp_path):
    (tmp_path / "x.state").touch()
    (tmp_path / "draft").write_bytes(b"half of it")
    assert open_node_store(tmp_path) == NodeStore(tmp_path)
    assert FlatArray  # the store finds the app's arrays by their attributes, not by their class
