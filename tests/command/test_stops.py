"""A stop is no failure of a node: a stopped and resumed run ends like an uninterrupted run.

A shell and `timeout` send the signal to the process group, systemd and Slurm to every process, and
Docker only to the first process.
"""

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from edgewire.strategy.run import checkpoint_file
from edgewire.strategy.run.checkpointer import RUN, RunState
from edgewire.strategy.run.serialization import from_bytes
from tests import fork_server
from tests.local_runs import files_of

SMALL = ["dataset=digits", "batch_size=16", "engine.workers=2"]
PRESETS = {  # a preset for each kind of strategy
    "synchronous": ["algorithm=esgd", "nodes=3", "rounds=40", "eval_every=40"],
    "of Flower's": ["algorithm=fedavg_topk", "nodes=3", "rounds=16", "local_steps=30",
                    "eval_every=16"],
    "asynchronous": ["algorithm=adacomp", "nodes=3", "strategy.pushes=120",
                     "strategy.record_every=5", "eval_every=120"],
    "cut model": ["algorithm=synthetic_gradients", "rounds=16", "strategy.record_every=1",
                  "eval_every=16", "batch_size=16"],
}  # fmt: skip
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
STOPS = list(product((os.kill, os.killpg), NUMBERS))  # each signal to one process, and to its group
pytestmark = pytest.mark.usefixtures("listening")


def rows_of(folder):
    path = folder / "history.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def start(words, folder, before=None):
    """Start the command; its output goes to the file `printed` in the folder."""
    with (folder / "printed").open("ab") as printed:
        return fork_server.Popen(
            [sys.executable, "run.py", *words], cwd=fork_server.ROOT, stdout=printed,
            stderr=printed, before=before,
        )  # fmt: skip


def children_of(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(true, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not true() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def begun(words, folder, rows):
    """Start a run, and return its process once its history has `rows` rows."""
    process = start(words, folder)
    until(lambda: rows_of(folder) >= rows, process)
    assert process.poll() is None, (folder / "printed").read_text()
    return process


@pytest.mark.system
@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_stopped_in_every_way_ends_like_an_uninterrupted_one(preset, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    folder.mkdir()
    words, again = [*SMALL, *PRESETS[preset]], [f"resume={folder}", "engine.workers=2"]
    expect_end(start([*words, f"hydra.run.dir={whole}"], whole), whole)
    rows, given = rows_of(whole), [*words, f"hydra.run.dir={folder}"]
    stops = STOPS[2 * [*PRESETS].index(preset) % 6 :][:2]  # three presets have all six
    for place, (stop, number) in enumerate(stops, start=1):
        process = begun(given, folder, rows * place // (len(stops) + 2))
        workers = children_of(process.pid)
        assert len(workers) == 2
        (shared,) = Path("/dev/shm").glob(f"edgewire-{process.pid}-*")
        os.kill(workers[0], number)  # a worker ignores it; only its parent stops the run
        stop(process.pid, number)
        assert process.wait(60) == 128 + number
        said = (folder / "printed").read_text()
        assert said.splitlines()[-1] == f"stopped: `python run.py resume={folder}` resumes it"
        assert "Traceback" not in said
        assert json.loads((folder / "result.json").read_text())["ended"] == "interrupted"
        assert rows_of(folder) < rows
        assert not any(map(alive, workers))
        assert not shared.exists()
        given = again
    process = begun(again, folder, rows_of(folder) + 1)
    for number in NUMBERS:
        os.kill(children_of(process.pid)[0], number)
    expect_end(process, folder)
    assert files_of(folder) == files_of(whole)
    assert json.loads((folder / "result.json").read_text())["failures"] == 0


def expect_end(process, folder):
    assert process.wait(120) == 0, (folder / "printed").read_text()


@pytest.mark.system
def test_a_killed_and_resumed_run_leaves_the_same_files(cli, tmp_path):
    """A run is killed, then stopped, then resumed, each time with another number of workers.

    Its workers end when their parent is killed.
    """
    whole, folder = tmp_path / "whole", tmp_path / "it's a run, killed"
    whole.mkdir()
    folder.mkdir()
    words = ["algorithm=esgd", "rounds=150", "eval_every=50", "nodes=3", "batch_size=16"]
    assert cli(*words, "engine.workers=1", f"hydra.run.dir={whole}")[0] == 0
    place = str(folder).replace("'", "\\'")
    given = [*words, "engine.workers=2", f"hydra.run.dir='{place}'"]
    process = begun(given, folder, 40)
    workers = children_of(process.pid)
    assert len(workers) == 2
    rows = expect_stopped(process, signal.SIGKILL, folder)
    assert 40 <= len(rows) < 150
    until_gone(workers)
    before = (folder / ".hydra" / "overrides.yaml").read_text()
    process = begun([f"resume={folder}", "engine.workers=1"], folder, len(rows) + 30)
    assert children_of(process.pid) == []
    more = expect_stopped(process, signal.SIGTERM, folder)
    assert len(rows) + 30 <= len(more) < 150
    # the last checkpoint holds all finished rounds
    kept = from_bytes(RunState, checkpoint_file.read(folder)[RUN])
    assert kept.records.last["round"] == json.loads(more[-1])["round"]
    assert json.loads((folder / "result.json").read_text())["ended"] == "interrupted"
    code, printed = cli(f"resume={folder}", "engine.workers=2")
    assert (code, printed.err) == (0, "")
    assert "accuracy" in printed.out
    assert files_of(folder) == files_of(whole)
    assert (folder / ".hydra" / "overrides.yaml").read_text() == before


def expect_stopped(process, number, folder):
    """Signal a run, assert that the signal ends it, and return the rows of its history."""
    os.kill(process.pid, number)
    assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in (folder / "printed").read_text()
    return (folder / "history.jsonl").read_text().splitlines()


def until_gone(pids):
    deadline = time.monotonic() + 10
    while (there := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not there


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stopped_by(number, place):
    """Make this process signal itself when it calls `place`; Hydra may suppress the exception."""
    module, _, name = place.rpartition(".")
    module = importlib.import_module(module)
    found = getattr(module, name)

    def called(*args, **options):
        with suppress(BaseException):
            os.kill(os.getpid(), number)
        return found(*args, **options)

    setattr(module, name, called)


@pytest.mark.few(1)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("edgewire.command.hydra_main.main", []),  # before Hydra composes anything
        ("hydra._internal.hydra.run_job", ["engine.workers=7"]),  # after Hydra has composed
        ("hydra.core.utils.run_job", ["-m", "seed=0,1"]),
        ("edgewire.command.job.under_way", []),
    ],
)
def test_a_stop_before_a_run_begins_ends_the_command(place, words, number, tmp_path):
    words = [*words, "rounds=1", f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}"]
    process = start(words, tmp_path, partial(stopped_by, number, place))
    assert process.wait(60) == 128 + number
    assert (tmp_path / "printed").read_text() == "stopped: no run was under way\n"
