"""With little memory, messages pass through files on disk; a full disk gives a one-line error.

A tmpfs of a few MB is used in place of `/dev/shm`, which has 64 MB in Docker. Only root can mount
a tmpfs.
"""

import logging
import shutil
import subprocess
from contextlib import closing

import numpy as np
import pytest

from edgewire.machine.errors import EngineError
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers import channel
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool
from tests.simulation.grids import NODES, app, messages, seen

MEGABYTE = 1 << 20


@pytest.fixture
def mounted(tmp_path):
    """Return a function that mounts a tmpfs (size, number of inodes) and returns its folder."""
    folders = []

    def mount(name, size, inodes=1000):
        folder = tmp_path / name
        folder.mkdir()
        options = f"size={size},nr_inodes={inodes}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a tmpfs cannot be mounted here")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def run(monkeypatch, caplog):
    """Return a function that sends messages to nodes in two workers; it returns replies and log."""

    def answers(memory, disk, size, **config):
        monkeypatch.setattr(channel, "MEMORY", str(memory))
        monkeypatch.setattr(channel.tempfile, "tempdir", str(disk))
        with (
            caplog.at_level(logging.WARNING, "edgewire"),
            closing(make_pool(NodeHostSpec(app, NODES, 1, {}), 2)) as pool,
        ):
            grid = LocalGrid(pool, NODES)
            replies = [
                reply
                for length in (size // 100, size)
                for reply in grid.send_and_receive(messages(grid, size=length, **config))
            ]
        return seen(replies), [r.getMessage() for r in caplog.records if r.name == "edgewire"]

    return answers


def whole(replies, size):
    """Return whether each node's second reply holds the bytes sent."""
    data = np.arange(size, dtype=np.uint8).tobytes()
    return [reply[2] == data for reply in replies[NODES:]] == [True] * NODES


def test_with_room_in_memory_nothing_is_written_to_disk(mounted, run, tmp_path):
    memory = mounted("memory", 64 * MEGABYTE)
    replies, said = run(memory, tmp_path, 2 * MEGABYTE)
    assert whole(replies, 2 * MEGABYTE)
    assert said == []
    assert not any(memory.iterdir())


@pytest.mark.parametrize(
    ("size", "room", "inodes"),
    [(1, 4, 1000), (3, 4, 1000), (20, 4, 1000), (1, 64, 4), (1, 1, 1)],
    ids=["fits", "large", "too large", "no file", "no folder"],
)
def test_what_memory_cannot_take_is_written_to_disk(mounted, run, tmp_path, size, room, inodes):
    """`size`: MB of a message; `room`: MB of memory; `inodes`: files and folders there."""
    memory, disk = mounted("memory", room * MEGABYTE, inodes), tmp_path / "disk"
    disk.mkdir()
    replies, said = run(memory, disk, size * MEGABYTE)
    assert whole(replies, size * MEGABYTE)
    assert len(said) == (inodes > 1)
    assert all(str(memory) in line and str(disk) in line for line in said)
    assert not any(disk.iterdir())
    assert not any(memory.iterdir())


@pytest.mark.parametrize(("size", "inodes"), [(MEGABYTE, 1000), (64 * MEGABYTE, 4)])
def test_no_room_anywhere_ends_in_one_line(mounted, run, size, inodes):
    memory, disk = (mounted(name, size, inodes) for name in ("memory", "disk"))
    with pytest.raises(EngineError, match=r"^no room for what .* MB in .*set TMPDIR.*$") as caught:
        run(memory, disk, 3 * MEGABYTE)
    assert str(disk) in str(caught.value)
    assert not any(disk.iterdir())


def test_no_room_for_replies_ends_in_one_line(mounted, run):
    """The messages fit, but the workers find no room for their replies."""
    memory, disk = mounted("memory", MEGABYTE), mounted("disk", 12 * MEGABYTE)
    with pytest.raises(EngineError, match="no room for what nodes and server send each other"):
        run(memory, disk, 2_500_000)


def test_no_folder_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(channel, "MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr(channel.tempfile, "tempdir", str(tmp_path / "neither"))
    with pytest.raises(EngineError, match="no folder for what nodes and server send"):
        channel.Folders()


def test_files_of_workers_that_died_are_gone_at_once(run, tmp_path, monkeypatch):
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(channel, "MEMORY", str(memory))
    with closing(make_pool(NodeHostSpec(app, NODES, 1, {}), 2)) as pool:
        grid = LocalGrid(pool, NODES)
        for deaths in range(4):
            replies = list(grid.send_and_receive(messages(grid, size=MEGABYTE, **{"die-at": 3})))
            assert any(reply.has_error() for reply in replies), deaths
            files = [file for file in memory.rglob("*") if file.is_file()]
            assert len(files) <= 2 * 2 * 2  # workers, directions, slots
    assert not any(memory.iterdir())


def test_a_message_without_large_parts_takes_no_file(tmp_path):
    ours, theirs = channel.Shared([tmp_path / "a"]), channel.Shared([tmp_path / "a"])
    assert theirs.read(0, ours.write([])) == []
    assert theirs.read(0, ours.write([memoryview(b"")] * 2)) == [b"", b""]
    assert not any(tmp_path.iterdir())


def test_memory_is_left_for_other_processes(mounted, tmp_path):
    memory = mounted("memory", 8 * MEGABYTE)
    for number, place in enumerate([0, 0, 1, 1]):
        shared = channel.Shared([folder / f"a-{number}" for folder in (memory, tmp_path)])
        shared.write([memoryview(bytes(5 * MEGABYTE // 2))])
        assert shared.place == place
        assert shutil.disk_usage(memory).free >= 2 * MEGABYTE


def test_with_one_folder_only_it_may_be_filled(mounted):
    memory = mounted("memory", 8 * MEGABYTE)
    shared = channel.Shared([memory / "a"])
    shared.write([memoryview(bytes(7 * MEGABYTE))])
    assert shared.place == 0


def test_a_start_removes_files_of_dead_processes(tmp_path, monkeypatch):
    places = [tmp_path / name for name in ("memory", "disk")]
    for place in places:
        (place / "edgewire-1-run-abcdefgh").mkdir(parents=True)
        (place / "edgewire-1-run-abcdefgh" / "in-1-0").write_bytes(bytes(MEGABYTE))
    monkeypatch.setattr(channel, "MEMORY", str(places[0]))
    monkeypatch.setattr(channel.tempfile, "tempdir", str(places[1]))
    with closing(channel.Folders()) as folders:
        assert [path.parent for path in folders.paths] == places
        assert [len(list(place.iterdir())) for place in places] == [1, 1]
    assert not any(child for place in places for child in place.iterdir())
