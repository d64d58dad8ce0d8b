"""A process removes its temporary folders at its end, and the folders of dead processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgewire.machine.temp_dirs import TempDirs, sweep

KILLED = """
import os, sys, time
from pathlib import Path
from edgewire.machine.temp_dirs import TempDirs
scratch = TempDirs(sys.argv[1])
folder = scratch.path
(folder / "file").write_bytes(b"x" * 1000)
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(60)
print(folder, os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def owner(tmp_path):
    """Return a function that starts a process with a temporary folder; it returns both.

    With "fork", a child of the process survives it.
    """
    started = []

    def start(kind=""):
        command = [sys.executable, "-c", KILLED, str(tmp_path), kind]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return Path(process.stdout.readline().split()[0]), process

    yield start
    for process in started:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            continue
        process.stdout.close()
        process.wait()


def test_a_closed_folder_is_removed(tmp_path):
    scratch = TempDirs(tmp_path)
    (scratch.path / "file").touch()
    sweep(tmp_path)
    assert scratch.path.is_dir()
    scratch.close()
    assert not any(tmp_path.iterdir())
    scratch.close()


def test_folders_of_killed_processes_are_removed_and_others_stay(owner, tmp_path):
    (dead, process), (alive, _) = owner(), owner()
    sweep(tmp_path)
    assert dead.is_dir()
    process.kill()
    process.wait()
    assert dead.is_dir()
    sweep(tmp_path)
    assert not dead.exists()
    assert (alive / "file").stat().st_size == 1000


def test_a_worker_that_outlives_its_parent_keeps_the_folder(owner, tmp_path):
    folder, process = owner("fork")
    process.kill()
    process.wait()
    sweep(tmp_path)
    assert folder.is_dir()
    os.killpg(process.pid, 9)
    deadline = time.monotonic() + 20
    while folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.02)  # until the child is dead too
        sweep(tmp_path)
    assert not folder.exists()


def test_other_folders_stay(tmp_path):
    names = ["edgewire-1-abcdefgh", "edgewire-x-run-abcdefgh", "edgewire-1-run-abcdefghi", "other"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "edgewire-1-run-abcdefgh").write_text("a file")
    (tmp_path / "edgewire-2-run-abcdefgh").symlink_to(tmp_path / "other")
    before = set(tmp_path.iterdir())
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == before
    sweep(tmp_path / "not there")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_stays(tmp_path):
    mine, theirs = (tmp_path / f"edgewire-{n}-run-abcdefgh" for n in (1, 2))
    for folder in (mine, theirs):
        folder.mkdir()
    os.chown(theirs, 65534, 65534)
    sweep(tmp_path)
    assert not mine.exists()
    assert theirs.is_dir()
