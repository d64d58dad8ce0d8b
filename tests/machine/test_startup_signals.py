"""A stop during a command's imports ends it with one line."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = {"run.py": "runpy.run_path('run.py', run_name='__main__')",
            "simulation": "sys.argv = ['x', 'no app']; runpy.run_module('edgewire.simulation', "
            "run_name='__main__', alter_sys=True)"}  # fmt: skip
# the signal arrives at the first module of another package
PROGRAM = """
import os, runpy, signal, sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name in ("edgewire.command", "flwr"):
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Interrupted())
{command}
"""


@pytest.mark.parametrize(
    ("command", "number"),
    [("run.py", signal.SIGINT), ("run.py", signal.SIGHUP), ("simulation", signal.SIGTERM)],
)
def test_a_stop_while_modules_are_imported(listening, command, number):
    program = PROGRAM.format(number=int(number), command=COMMANDS[command])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 128 + number
    assert done.stderr == "stopped: no run was under way\n"
    assert not done.stdout


def test_an_ignored_signal_stays_ignored():
    program = (
        "import os, signal\nfrom edgewire.machine.startup_signals import early_stop\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with early_stop():\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\nprint('on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")
