"""A forked program behaves for a test like one that `subprocess` has started."""

import signal
import subprocess
import sys

import pytest

from tests import fork_server

PROGRAM = """
import os, sys, time
print(sys.argv[1:], os.getcwd(), os.environ["WHO"], "conf" in sys.modules, flush=True)
print("said", file=sys.stderr)
if "waits" in sys.argv:
    time.sleep(60)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


@pytest.mark.parametrize("runs", [fork_server.run, subprocess.run])
def test_a_program_has_its_arguments_folder_and_environment(runs, program, tmp_path):
    options = {} if runs is fork_server.run else {"capture_output": True}
    done = runs([*program, "a b"], cwd=tmp_path, env={"WHO": "me"}, text=True, **options)
    assert done.returncode == 3
    assert done.stdout == f"['a b'] {tmp_path} me False\n"
    assert done.stderr == "said\n"


@pytest.mark.parametrize("popen", [fork_server.Popen, subprocess.Popen])
def test_a_program_can_be_waited_for_and_killed(popen, program, monkeypatch):
    monkeypatch.setenv("WHO", "me")
    process = popen([*program, "waits"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline().startswith(b"['waits'] ")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.kill()
    assert process.wait(20) == process.returncode == -signal.SIGKILL
    assert process.stdout.read() == b"said\n"
    process.stdout.close()
