"""The run on the server."""

import json
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from safetensors.torch import load_file

from compression.flower.grids import GridWrapper
from conf import ConfigError
from conf.load import compose_config, run_config
from simulation.grid import LocalGrid
from simulation.host import HostSpec
from simulation.job import Job
from simulation.local import run_local
from simulation.workers import make_pool
from strategy.app import Run, main
from strategy.nodes import OrderedGrid
from strategy.records import Records
from tests.runs import configured

ROOT = Path(__file__).parents[2]


def job_grid():
    return LocalGrid(make_pool(HostSpec("client.app:app", 1, 1, {}), 1), 1)


class Tended(GridWrapper):
    """Counts how often it is tended."""

    calls = 0

    def tend(self):
        self.calls += 1


def test_workers_are_tended_while_the_model_is_measured():
    grid = Tended(job_grid())
    run = Run(configured(), OrderedGrid(grid), Records(""))
    run.round_done(0, ArrayRecord(run.model.state_dict()))
    assert grid.calls > 1


@pytest.mark.parametrize(
    ("raised", "ended"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (RuntimeError("first\nthe disk is gone"), "RuntimeError: the disk is gone"),
    ],
)
def test_what_was_done_is_kept_however_a_run_ends(tmp_path, monkeypatch, raised, ended):
    """The third round raises in the middle: the model of the second is there, and why."""
    done = Run.round_done

    def third(self, server_round, arrays):
        if server_round == 3:
            raise raised
        return done(self, server_round, arrays)

    monkeypatch.setattr(Run, "round_done", third)
    composed = compose_config(["rounds=9", "eval_every=9", "nodes=3"])
    job = Job(ROOT, run_config(composed, str(tmp_path)), 3, tmp_path)
    with pytest.raises(type(raised)):
        run_local(job, workers=1)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["round"], result["ended"], result["stopped"]) == (2, ended, ended)
    first = Run(configured(), OrderedGrid(job_grid()), Records("")).model.state_dict()
    model = load_file(tmp_path / "model.safetensors")
    assert any(not torch.equal(first[name], tensor) for name, tensor in model.items())


def test_a_network_that_nothing_emulates_is_refused_where_time_is_real():
    class Real(GridWrapper):
        virtual_seconds = None

    values = run_config(compose_config(["network=lte"]))
    context = Context(1, 1, {}, RecordDict(), values)
    with pytest.raises(ConfigError, match=r"time is real.*give network=ideal"):
        main(Real(job_grid()), context)
