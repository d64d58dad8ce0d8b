"""A stop, whoever it reaches, is no failure of a node: what is resumed ends as if uninterrupted.

A shell and `timeout` signal the process group, systemd and Slurm every process, Docker the first.
"""

import json
import os
import signal
import time

import pytest

from tests.command.forked import Forks, children_of
from tests.strategy.test_checkpoints import left

SMALL = ["dataset=digits", "batch_size=16", "engine.workers=2"]
PRESETS = {  # of each kind of strategy one
    "synchronous": ["algorithm=esgd", "nodes=3", "rounds=60", "eval_every=60"],
    "of Flower's": ["algorithm=fedavg_topk", "nodes=3", "rounds=24", "local_steps=3",
                    "eval_every=24"],
    "asynchronous": ["algorithm=adacomp", "nodes=3", "strategy.pushes=120",
                     "strategy.record_every=5", "eval_every=120"],
    "cut model": ["algorithm=synthetic_gradients", "rounds=16", "strategy.record_every=1",
                  "eval_every=16"],
}  # fmt: skip
STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
pytestmark = pytest.mark.usefixtures("listening")


@pytest.fixture(scope="module")
def forks():
    return Forks()


@pytest.fixture(scope="module", params=PRESETS)
def whole(request, forks, tmp_path_factory):
    """Return a preset's words, and the folder of a run of it that nobody has stopped."""
    words, folder = [*PRESETS[request.param], *SMALL], tmp_path_factory.mktemp("whole")
    process = forks.start([*words, f"hydra.run.dir={folder}"], folder / "printed")
    process.join(120)
    assert process.exitcode == 0, (folder / "printed").read_text()
    return words, folder


def rows_of(folder):
    path = folder / "history.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def until(true, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not true() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)


def begun(forks, words, folder, rows):
    """Return a run that has come so far."""
    process = forks.start(words, folder / "printed")
    until(lambda: rows_of(folder) >= rows, process)
    assert process.is_alive(), (folder / "printed").read_text()
    return process


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_run_that_was_stopped_twice_ends_as_if_it_had_not_been(whole, forks, number, tmp_path):
    words, of_whole = whole
    rows, resume = rows_of(of_whole), [f"resume={tmp_path}", "engine.workers=2"]
    first = [*words, f"hydra.run.dir={tmp_path}"]
    for place, (stop, given) in enumerate([(os.kill, first), (os.killpg, resume)], start=1):
        process = begun(forks, given, tmp_path, place * rows // 4)
        assert len(children_of(process.pid)) == 2
        stop(process.pid, number)
        process.join(60)
        assert process.exitcode == 128 + number
        said = (tmp_path / "printed").read_text()
        assert said.splitlines()[-1] == f"stopped: `python run.py resume={tmp_path}` goes on"
        assert "Traceback" not in said
        assert json.loads((tmp_path / "result.json").read_text())["ended"] == "interrupted"
        assert rows_of(tmp_path) < rows
    again = forks.start(resume, tmp_path / "printed")
    again.join(120)
    assert again.exitcode == 0, (tmp_path / "printed").read_text()
    assert left(tmp_path) == left(of_whole)
    assert json.loads((tmp_path / "result.json").read_text())["failures"] == 0


def test_a_worker_leaves_stops_to_its_parent(whole, forks, tmp_path):
    words, of_whole = whole
    process = begun(forks, [*words, f"hydra.run.dir={tmp_path}"], tmp_path, rows_of(of_whole) // 4)
    workers = children_of(process.pid)
    for number in STOPS:
        os.kill(workers[0], number)
    process.join(120)
    assert process.exitcode == 0
    assert left(tmp_path) == left(of_whole)


def test_workers_end_with_a_parent_that_is_killed(forks, tmp_path):
    words = [*PRESETS["synchronous"], *SMALL, f"hydra.run.dir={tmp_path}"]
    process = begun(forks, words, tmp_path, 15)
    workers = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    deadline = time.monotonic() + 10
    while (there := [w for w in workers if alive(w)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not there


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
