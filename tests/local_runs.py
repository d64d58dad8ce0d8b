"""Makes runs on the local engine in this process, and stops them at a chosen moment."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgewire.client.training import Trainer
from edgewire.conf.load import load_config, run_config
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from edgewire.strategy.run import checkpoint_file, checkpointer
from edgewire.strategy.run.run import Run
from edgewire.task.models.parts import MODELS
from tests.runs import REAL, ROOT, composed, history_of, model_bytes, nodes_of, result_of


def local_run(
    folder: Path, *words: str, workers: int = 1, resume: bool = False, **job: Any
) -> None:
    """Make a run on the local engine; `job` holds fields of `Job` that differ from the words."""
    values = {**run_config(composed(*words), str(folder)), "resume": resume}
    config = load_config(values, nodes=0)  # the run takes it from the same cache
    job = {"seed": config.seed, "network": config.network, **job}
    run_local(Job(ROOT, values, config.nodes, folder, **job), workers=workers)


def at_row(monkeypatch, row, act):
    """Call `act` before a run writes row number `row`, from 1 on, of its history."""
    done, count = Run.round_done, 0

    def noting(self, server_round, arrays):
        nonlocal count
        count += 1
        if count == row:
            monkeypatch.setattr(Run, "round_done", done)
            act()
        return done(self, server_round, arrays)

    monkeypatch.setattr(Run, "round_done", noting)


def build_otherwise_at_nodes(monkeypatch, name, change):
    """Let all nodes call `change` with the model `name` that they build.

    So their constants differ from the server's, as those of another processor may.
    """
    build, made = MODELS[name], []

    def changed(*shape):
        module = build(*shape)
        change(module)
        return module

    def trainer_for(config, folder):
        if not made:
            with monkeypatch.context() as patch:
                patch.setitem(MODELS, name, changed)
                made.append(Trainer(config, folder))
        return made[0]

    monkeypatch.setattr("edgewire.client.app.trainer_for", trainer_for)


def raising(error):
    """Return a function that raises the error, whatever its arguments."""

    def act(*arguments, **options):
        raise error

    return act


class Stopped(Exception):
    """Raised to end a run suddenly."""


def expect_resumed(monkeypatch, folder, words, row, workers=None):
    """Assert that a run resumed at a row of its history leaves the files of an uninterrupted run.

    `workers` holds the numbers of workers before and after the stop. If it is None, no run is
    stopped: a copy of the first run's folder is used in place of the files of a killed run.
    """
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)  # every checkpoint that is due
    whole, stopped = folder / "whole", folder / "stopped"
    if workers is None:
        at_row(monkeypatch, row, lambda: shutil.copytree(whole, stopped))
        local_run(whole, *words)
        assert not (stopped / "result.json").exists()
    else:
        local_run(whole, *words)
        at_row(monkeypatch, row, raising(Stopped))
        with pytest.raises(Stopped):
            local_run(stopped, *words, workers=workers[0])
    assert (stopped / checkpoint_file.FILE).exists()
    local_run(stopped, *words, workers=workers[1] if workers else 1, resume=True)
    assert files_of(stopped) == files_of(whole)
    assert not (stopped / checkpoint_file.FILE).exists()


def files_of(folder):
    """Return the contents of a run's files, without values in real seconds."""
    result = {key: value for key, value in result_of(folder).items() if key not in REAL}
    return history_of(folder), result, model_bytes(folder), nodes_of(folder)
