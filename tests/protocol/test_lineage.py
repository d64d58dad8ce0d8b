"""Messages name the checkpoint from which a run was resumed; nodes return to its state."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower import records
from edgewire.compression.flower.node.state import store_arrays, stored_arrays
from edgewire.deploy.device.node_database import NodeDatabase
from edgewire.deploy.device.node_store import open_node_store
from edgewire.protocol import lineage
from edgewire.protocol.lineage import (
    Checkpoint,
    RunLineage,
    lineage_of,
    reply_group_id,
    stores_states,
    with_lineage,
)

NUMBERS = st.integers(1, 2**64 - 1)
CHECKPOINTS = st.lists(st.builds(Checkpoint, NUMBERS, st.integers(0, 2**40)), max_size=4)
NODE = 7


@given(NUMBERS, NUMBERS, CHECKPOINTS, st.text(max_size=9))
def test_a_lineage_is_read_as_it_was_written(key, run_id, checkpoints, group):
    lineage = RunLineage(key, run_id, tuple(checkpoints))
    said = with_lineage(group, lineage)
    assert lineage_of(said, run_id) == lineage
    assert stores_states(reply_group_id(said))
    assert not stores_states(said)


@pytest.mark.parametrize("group", ["", "17", "17 kept", "kept/", "a kept/x", "1 kept//1:", "a\n"])
def test_another_apps_group_id_has_no_lineage(group):
    assert lineage_of(group, 1) is None
    assert reply_group_id(group) == group


def test_the_first_run_has_a_short_group_id():
    lineage = RunLineage(2**63, 2**63)
    assert with_lineage("17", lineage) == "17 kept/"
    assert with_lineage("17", lineage.at_checkpoint(8).at_checkpoint(16)) == "17 kept//:16"


class Device:
    """A node that stores the list of the messages that it worked on."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def asked(self, number, lineage, node=NODE):
        """Restart the node and let it work on a message; return the list that it had stored before.

        `lineage`: the run, and the checkpoints that it continues.
        """
        database = NodeDatabase(self.folder)
        node_store = open_node_store(database, "1")
        node_store.take_up(node, lineage)
        before = (
            stored_arrays(node_store.state, "memory")["numbers"]
            if node_store.state
            else np.zeros(0)
        )
        state = RecordDict({"plain": ArrayRecord([np.zeros(40_000)])})  # a file that never changes
        store_arrays(state, "memory", {"numbers": np.append(before, number)})
        self.count += 1
        node_store.commit(state, f"m{self.count}", b"reply")
        database.close()
        return list(before)


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path)


def test_a_node_returns_to_the_resumed_checkpoint(device):
    first = RunLineage(1, 1)
    for number in range(1, 9):
        assert device.asked(number, first) == list(range(1, number))
        if number % 3 == 0:
            first = first.at_checkpoint(number)  # checkpoints at 3 and 6
    for run_id in (2, 3):  # the server was killed twice before its next checkpoint
        again = first._replace(run_id=run_id)
        assert device.asked(7, again) == [1, 2, 3, 4, 5, 6]
        assert device.asked(8, again) == [1, 2, 3, 4, 5, 6, 7]
    later = again.at_checkpoint(8)
    assert device.asked(9, later) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert device.asked(9, later._replace(run_id=4)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(list((device.folder / "arrays").iterdir())) == 1


def test_a_node_without_messages_after_the_checkpoint_keeps_its_state(device):
    first = RunLineage(1, 1).at_checkpoint(2)
    device.asked(1, RunLineage(1, 1))
    device.asked(2, first)
    checkpoint = first.at_checkpoint(5)  # this node got no message between the two checkpoints
    assert device.asked(6, checkpoint._replace(run_id=2)) == [1, 2]


def test_a_node_returns_past_a_restart_without_messages(device):
    first = RunLineage(1, 1).at_checkpoint(1)
    device.asked(1, RunLineage(1, 1))
    device.asked(2, first)  # back to checkpoint 1; the later messages of this node are dropped
    second = first._replace(run_id=2).at_checkpoint(5)
    third = second._replace(run_id=3)
    assert device.asked(6, third) == [1]
    assert device.asked(6, third._replace(run_id=4)) == [1]


def test_a_state_of_another_history_starts_anew_and_logs_it(device, caplog):
    first = RunLineage(1, 1).at_checkpoint(1)
    device.asked(1, RunLineage(1, 1))
    device.asked(2, first)
    device.asked(3, first.at_checkpoint(2))  # the server lost this checkpoint and has an older one
    assert device.asked(2, first._replace(run_id=2)) == []
    assert "starts anew" in caplog.text


def test_a_node_with_another_id_starts_anew_and_logs_it(device, caplog):
    device.asked(1, RunLineage(1, 1))
    assert device.asked(2, RunLineage(1, 1), node=8) == []
    assert "is of node 7: it starts anew" in caplog.text


def test_a_run_without_a_lineage_keeps_its_state(device):
    for number in range(3):
        assert device.asked(number, None) == list(range(number))


def test_the_names_of_what_is_not_stored_are_those_of_the_library():
    assert (lineage.VOLATILE, lineage.UNSTORED) == (records.VOLATILE, records.UNSTORED)
