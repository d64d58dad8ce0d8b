"""Two processes do not write one run."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from edgewire.command import python_api
from edgewire.command import run_lock as module
from edgewire.command import sweep as sweep_module
from edgewire.command.run_lock import LOCK, SWEEP_LOCK, run_lock
from edgewire.conf.schema import ConfigError
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
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_a_file_system_without_locks_is_warned_of(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, "no locks")))
    with run_lock(tmp_path), run_lock(tmp_path):
        assert "has no locks: let no other process write" in caplog.text


def test_other_errors_of_a_lock_are_not_hidden(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.EIO, "a damaged disk")))
    with pytest.raises(OSError, match="a damaged disk"):
        run_lock(tmp_path).__enter__()


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.few(1)
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


@pytest.mark.system
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
