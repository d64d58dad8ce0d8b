"""Two processes do not write one run, and a job ends with its killed sweep."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from edgewire.command import python_api
from edgewire.command import run_lock as module
from edgewire.command import sweep as sweep_module
from edgewire.command.run_lock import LOCK, SWEEP_LOCK, ended_with_parent, run_lock
from edgewire.conf.schema import ConfigError
from edgewire.machine.processes import began
from tests.local_runs import raising
from tests.runs import QUICK

HOLD = """
import sys, time
from pathlib import Path
from edgewire.command.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_written_by_one_process(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {other.pid} is writing this folder"):
            run_lock(tmp_path).__enter__()
        other.kill()
    with run_lock(tmp_path):  # the killed process holds it no more
        assert (tmp_path / LOCK).read_text().split()[0] == str(os.getpid())


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def without_locks(request, monkeypatch):
    """Let no file be locked, as on some network file systems."""

    def flock(*given):
        raise OSError(request.param, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    module.warn_once.cache_clear()


def test_without_locks_a_text_takes_their_place(without_locks, tmp_path, caplog):
    for _ in range(2):
        with run_lock(tmp_path), pytest.raises(ConfigError) as refused:
            run_lock(tmp_path).__enter__()
        assert f"process {os.getpid()} on {module.HOST} is writing this folder" in str(
            refused.value
        )
    assert caplog.text.count("no locks: a text file takes their place") == 1
    assert [path.name for path in (tmp_path / ".hydra").iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("said", "free"),
    [
        ("", True),
        ("{ended} 17 {host}", True),
        ("{own} 17 {host}", True),  # another process has this id now
        ("{own} {began} {host}", False),
        ("{ended} 17 elsewhere", False),
    ],
)
def test_a_text_of_a_process_that_has_ended_here_does_not_count(
    without_locks, tmp_path, said, free
):
    with subprocess.Popen(["true"]) as other:
        pass
    (tmp_path / LOCK).parent.mkdir()
    own, host = os.getpid(), module.HOST
    text = said.format(ended=other.pid, own=own, began=began(own), host=host)
    (tmp_path / LOCK).write_text(text)
    refused = pytest.raises(ConfigError, match=f"remove {tmp_path / LOCK}")
    with nullcontext() if free else refused, run_lock(tmp_path):
        assert (tmp_path / LOCK).read_text().split()[0] == str(own)
    assert not (tmp_path / LOCK).with_name("lock.turn").exists()


def test_while_another_process_looks_at_the_text_this_one_is_refused(without_locks, tmp_path):
    (tmp_path / LOCK).with_name("lock.turn").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"process \? on \? is writing this folder"):
        run_lock(tmp_path).__enter__()


def test_other_errors_of_a_lock_are_not_hidden(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.EIO, "a damaged disk")))
    with pytest.raises(OSError, match="a damaged disk"):
        run_lock(tmp_path).__enter__()


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "lock"), [([], LOCK), (["-m", "seed=1,2"], SWEEP_LOCK)])
def test_a_refused_command_writes_nothing(words, lock, command, cli):
    code, _, folder = command(*words, *QUICK)
    assert code == 0
    with run_lock(folder, lock):
        before = files_below(folder)
        again = [*words, *QUICK, "lr=0.7", *(f"hydra.{k}.dir={folder}" for k in ("run", "sweep"))]
        for given in (again, [f"continue={folder}"]) if words else (again,):
            code, printed = cli(*given)
            assert (code, "is writing this folder" in printed.err) == (2, True)
            assert len(printed.err.splitlines()) == 1
            assert files_below(folder) == before


def test_a_job_that_another_process_runs_is_left_alone_by_a_continued_sweep(
    command, cli, monkeypatch
):
    monkeypatch.setattr(sweep_module, "SKEW", 0.0)
    code, _, folder = command("-m", *QUICK, "seed=1,2")
    (folder / "0" / "result.json").unlink()
    with run_lock(folder / "0"):
        before = files_below(folder / "0")
        code, printed = cli(f"continue={folder}")
        assert (code, "1 of 2 jobs failed" in printed.err) == (2, True)
        assert files_below(folder / "0") == before
        found = python_api.sweep(f"continue={folder}")
        assert (len(found), len(found.failed)) == (1, 1)
        assert "is writing this folder" in next(iter(found.failed.values()))
    code, printed = cli(f"continue={folder}")
    assert (code, printed.err) == (0, "")


def test_commands_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(module.time, "strftime", lambda words: "day/second")
    found = [module.new_folder(str(tmp_path)) for _ in range(3)]
    assert found == [f"{tmp_path}/day/second{suffix}" for suffix in ("", "-2", "-3")]


def test_a_job_is_stopped_when_its_parent_has_ended(monkeypatch):
    parents = iter([1, 1, 2])
    sent = []
    monkeypatch.setattr(module, "EVERY", 0.01)
    monkeypatch.setattr(module.os, "getppid", lambda: next(parents, 2))
    monkeypatch.setattr(module.os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    with ended_with_parent():
        deadline = time.monotonic() + 20
        while not sent and time.monotonic() < deadline:
            pass
    assert sent[0] == module.signal.SIGTERM
