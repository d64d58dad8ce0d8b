"""A node's folder holds its current message and the states of its last runs, and is its own."""

import errno
import fcntl
import os
import time

import pytest
from flwr.app import RecordDict
from flwr.proto.fleet_pb2 import PullMessagesResponse

from edgewire.deploy.device.node_folder import MOST_RUNS, NodeFolder
from edgewire.machine.errors import UsageError
from tests.deploy.damage import DAMAGE
from tests.local_runs import raising


def message(number):
    response = PullMessagesResponse()
    response.messages_list.add().metadata.message_id = "m" * number
    return response


@pytest.fixture
def restarted(tmp_path):
    """Return a function that opens the folder, as after a restart."""
    opened = []

    def call():
        while opened:
            opened.pop().close()
        opened.append(NodeFolder(tmp_path))
        return opened[0]

    yield call
    while opened:
        opened.pop().close()


def test_the_last_message_is_kept(restarted):
    assert restarted().claimed() is None
    for size in (9, 900_000, 7):
        restarted().claim(message(size))
        assert restarted().claimed() == message(size)


def test_a_damaged_message_is_none(restarted, tmp_path):
    restarted().claim(message(3000))
    with restarted().database.connection as db:
        db.execute("UPDATE records SET content = replace(content, 'mm', 'mn')")
    assert restarted().claimed() is None


@pytest.mark.parametrize("kind", ["empty", "zeros", "cut"])
def test_a_damaged_key_is_named(kind, restarted, tmp_path):
    restarted().key()
    DAMAGE[kind](tmp_path / "key")
    with pytest.raises(UsageError, match=f"{tmp_path / 'key'} is no private key"):
        restarted().key()


def stored_runs(folder):
    return sorted(int(name) for name in folder.database.names() if name.isdecimal())


def test_only_the_last_runs_are_kept(restarted, monkeypatch):
    earlier = iter(range(2**31, 0, -365 * 86400))  # the clock is set back at each look
    monkeypatch.setattr(time, "time", lambda: next(earlier))
    folder = restarted()
    for run in range(2**63, 2**63 + MOST_RUNS + 3):
        folder.node_store(run).commit(RecordDict(), "a", b"reply")
        folder.claim(message(1))
    folder.node_store(1)
    assert stored_runs(folder) == list(range(2**63 + 3, 2**63 + MOST_RUNS + 3))
    assert restarted().node_store(2**63 + 3).answered == ["a"]
    assert restarted().claimed() == message(1)


def test_a_folder_has_one_node(restarted, tmp_path):
    restarted()
    with pytest.raises(UsageError, match=r"another node runs on --state .*: give each its own"):
        NodeFolder(tmp_path)


def test_an_id_belongs_to_a_server_and_a_key(restarted):
    there = restarted()
    there.remember("a:1", b"key", 7)
    pairs = [("a:1", b"key"), ("b:1", b"key"), ("a:1", b"other")]
    assert [there.known_id(*pair) for pair in pairs] == [7, None, None]


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_state_on_a_file_system_without_locks_is_refused_by_name(error, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(error, os.strerror(error))))
    said = f"--state {tmp_path} cannot be used: {os.strerror(error)}"
    with pytest.raises(UsageError, match=said):
        NodeFolder(tmp_path)
