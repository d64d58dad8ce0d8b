"""Commands work for a user without a home folder, and print to an output that is not UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewire.machine.surroundings import free_memory

ROOT = Path(__file__).parents[2]
MB = 1 << 20
# A process of a user id without an entry in the password database.
NOBODY = (
    "import pwd, runpy, sys; pwd.getpwuid = {}.__getitem__; sys.argv = sys.argv[1:]; "
    "runpy.run_module(sys.argv[0], run_name='__main__')"
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [
        ["edgewire.deploy.doctor", "--superlink", "127.0.0.1:9", "--insecure", "--state", "~/here"],
        ["edgewire.deploy.keys", "--insecure", "--superlink", "127.0.0.1:9", "list"],
    ],
)
def test_a_user_without_a_home_folder_gets_no_traceback(words, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, *words],
        cwd=tmp_path, env={**kept, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "this check failed" not in done.stdout


@pytest.mark.system
def test_a_character_that_cannot_be_printed_is_replaced(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "edgewire.deploy.keys", "--keys", str(tmp_path / "\u0416"),
         "node", "a"],
        cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"}, text=True, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"made {tmp_path}/?/")


def test_free_memory_is_the_smallest_reported_value(tmp_path):
    info = tmp_path / "meminfo"
    assert free_memory(info, tmp_path) is None
    info.write_text("MemTotal:  9 kB\nMemAvailable:   2048 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(info, tmp_path) == 2 * MB
    (tmp_path / "memory.max").write_text(f"{3 * MB}\n")
    (tmp_path / "memory.current").write_text(f"{2 * MB}\n")
    assert free_memory(info, tmp_path) == MB


def test_a_command_whose_output_is_read_no_further_ends_without_a_traceback():
    code = (
        "from edgewire.machine.surroundings import print_any_text; print_any_text()\n"
        "while True: print('a line')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as command:
        assert command.stdout.readline() == "a line\n"
        command.stdout.close()
        assert command.stderr.read() == ""
