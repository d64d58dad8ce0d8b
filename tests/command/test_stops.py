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
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
STOPS = {  # each preset hears all signals and both ways, two presets make all pairs
    preset: [((os.kill, os.killpg)[(first + place) % 2], number)
             for place, number in enumerate(NUMBERS)]
    for first, preset in enumerate(PRESETS)
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("listening")


@pytest.fixture(scope="module")
def forks():
    return Forks()


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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_that_is_stopped_in_every_way_ends_as_if_it_had_not_been(preset, forks, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    folder.mkdir()
    words, again = [*PRESETS[preset], *SMALL], [f"resume={folder}", "engine.workers=2"]
    expect_end(forks.start([*words, f"hydra.run.dir={whole}"], whole / "printed"), whole)
    rows, given = rows_of(whole), [*words, f"hydra.run.dir={folder}"]
    for place, (stop, number) in enumerate(STOPS[preset], start=1):
        process = begun(forks, given, folder, rows * place // (len(NUMBERS) + 2))
        workers = children_of(process.pid)
        assert len(workers) == 2
        os.kill(workers[0], number)  # which leaves stops to its parent
        stop(process.pid, number)
        process.join(60)
        assert process.exitcode == 128 + number
        said = (folder / "printed").read_text()
        assert said.splitlines()[-1] == f"stopped: `python run.py resume={folder}` goes on"
        assert "Traceback" not in said
        assert json.loads((folder / "result.json").read_text())["ended"] == "interrupted"
        assert rows_of(folder) < rows
        given = again
    process = begun(forks, again, folder, rows_of(folder) + 1)
    for number in NUMBERS:
        os.kill(children_of(process.pid)[0], number)
    expect_end(process, folder)
    assert left(folder) == left(whole)
    assert json.loads((folder / "result.json").read_text())["failures"] == 0


def expect_end(process, folder):
    process.join(120)
    assert process.exitcode == 0, (folder / "printed").read_text()


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
