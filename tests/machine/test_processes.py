"""Processes are found, ended and waited for as a tree."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgewire.machine.processes import ProcessTree, orderly_exit

# A child that starts a grandchild in a new session and leaves it; the grandchild ignores SIGTERM.
GRANDCHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
CHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], start_new_session=True)
"""

# A process that starts another one without the marker, as Ray's agents do after renaming.
UNMARKED = """
import subprocess, sys, time
words = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(words, start_new_session=True, env={"HERE": sys.argv[1]})
time.sleep(60)
"""

INTERRUPTED = """
import os, signal, sys
from edgewire.machine.processes import orderly_exit
try:
    with orderly_exit():
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
finally:
    print("cleaned up")
"""


def test_a_tree_ends_with_its_orphans(tmp_path: Path) -> None:
    tree, other = ProcessTree(), ProcessTree()
    with (tmp_path / "log").open("wb") as log:
        tree.start([sys.executable, "-c", CHILD], {}, log).wait()
        bystander = other.start([sys.executable, "-c", "import time; time.sleep(60)"], {}, log)
    assert len(tree.alive()) == 1  # the orphan
    time.sleep(0.3)  # until it ignores SIGTERM

    tree.end(grace=0.2)

    assert tree.alive() == []
    assert bystander.poll() is None
    other.end(grace=5.0)
    assert bystander.returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="parents are known on Linux alone")
def test_a_tree_ends_with_children_without_the_mark(tmp_path: Path) -> None:
    tree, name = ProcessTree(), str(tmp_path).encode()
    with (tmp_path / "log").open("wb") as log:
        tree.start([sys.executable, "-c", UNMARKED, str(tmp_path)], {}, log)

    def unmarked() -> list[int]:
        return [pid for pid in tree.alive() if b"HERE=" + name in environ_of(pid)]

    until = time.monotonic() + 20
    while not unmarked() and time.monotonic() < until:
        time.sleep(0.05)
    (child,) = unmarked()
    tree.end(grace=5.0)
    assert tree.alive() == []
    assert environ_of(child) == b""


def environ_of(pid: int) -> bytes:
    """Return the environment that a process was started with; b"" if it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", -2)])
def test_interrupts_unwind_the_stack(name: str, code: int) -> None:
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, name], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout.strip()) == (code, "cleaned up")


def test_other_signal_handlers_stay() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with orderly_exit():
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
