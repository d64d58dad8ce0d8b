"""Two processes do not write one run, and a job ends with its killed sweep."""

import os
import subprocess
import sys
import time

import pytest

from command import run_lock as module
from command.run_lock import LOCK, ended_with_parent, run_lock
from conf import ConfigError

HOLD = """
import sys, time
from pathlib import Path
from command.run_lock import run_lock
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
