"""Starts the command in milliseconds, by forking a process that has imported all modules.

A test that signals processes cannot run the command in its own process, and importing torch takes
seconds.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOADED = ["command.main", "strategy.app", "client.app", "torch._dynamo", "flwr_datasets",
          "sklearn.datasets", "tests.command.frozen"]  # fmt: skip


def command(words, printed, before):
    """Run the command as a shell does: it leads a process group, and its output goes to a file.

    `before` is a function that this process calls before the command.
    """
    os.setsid()
    os.chdir(ROOT)
    out = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = ["run.py", *words]
    if before is not None:
        before()
    runpy.run_path("run.py", run_name="__main__")


class Forks:
    """Starts commands from one process that has imported their modules."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(LOADED)

    def start(self, words, printed, before=None):
        process = self._context.Process(target=command, args=(words, printed, before))
        process.start()
        return process


def children_of(pid):
    """Return the ids of a process's children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return sorted(found)
