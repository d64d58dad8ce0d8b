"""The ServerApp's run, from its start to its end."""

import json
import logging
import math
import signal
from pathlib import Path

import httpx
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from safetensors.torch import load_file

from compression.flower.timed_grid import GridWrapper
from conf import ConfigError
from conf.load import compose_config, run_config
from protocol.errors import RunEnded
from simulation.grid import LocalGrid
from simulation.job import Job
from simulation.local import run_local
from simulation.workers.node_host import NodeHostSpec
from simulation.workers.pool import make_pool
from strategy.app import main, mark_warnings
from strategy.ordered_grid import OrderedGrid
from strategy.run import checkpoint_file
from strategy.run.run import Run
from strategy.run.run_log import RunLog
from tests.runs import composed, configured

ROOT = Path(__file__).parents[2]


def job_grid():
    return LocalGrid(make_pool(NodeHostSpec("client.app:app", 1, 1, {}), 1), 1)


class Tended(GridWrapper):
    """A grid that counts the calls of `tend`."""

    calls = 0

    def tend(self):
        self.calls += 1


def test_workers_are_tended_while_the_model_is_measured():
    grid = Tended(job_grid())
    run = Run(configured(), OrderedGrid(grid), RunLog(""))
    run.round_done(0, ArrayRecord(run.model.state_dict()))
    assert grid.calls > 1


def test_warnings_are_marked_without_a_log_handler(monkeypatch, capsys):
    log = logging.getLogger("edgewire")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)
    for _ in range(2):
        mark_warnings()
    log.warning("node %d is gone", 7)
    assert capsys.readouterr().err == "WARNING:edgewire:node 7 is gone\n"


def test_warnings_are_unchanged_with_a_log_handler(monkeypatch):
    log = logging.getLogger("edgewire")
    monkeypatch.setattr(log, "handlers", shown := [logging.NullHandler()])
    mark_warnings()
    assert log.handlers == shown
    assert len(shown) == 1


def refused_with(status):
    """Return the error that Flower's grid raises when the server refuses a call."""
    response = httpx.Response(status, request=httpx.Request("POST", "http://server"))
    return httpx.HTTPStatusError("no", request=response.request, response=response)


@pytest.mark.parametrize(
    ("raised", "ended"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (RunEnded("by somebody"), "interrupted"),
        (refused_with(401), "interrupted"),
        (refused_with(500), "HTTPStatusError: no"),
        (RuntimeError("first\nthe disk is gone"), "RuntimeError: the disk is gone"),
    ],
)
def test_finished_rounds_are_saved_for_every_end_of_a_run(tmp_path, monkeypatch, raised, ended):
    """If the third round raises an error, the second round's model and the reason are saved."""
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
    first = Run(configured(), OrderedGrid(job_grid()), RunLog("")).model.state_dict()
    model = load_file(tmp_path / "model.safetensors")
    assert any(not torch.equal(first[name], tensor) for name, tensor in model.items())


@pytest.mark.parametrize("while_saving", [False, True])
def test_an_error_while_a_signal_waits_counts_as_a_stop(tmp_path, monkeypatch, while_saving):
    """If an error follows a stop signal, the run counts as stopped and not as failed."""
    heard, write, done = [], checkpoint_file.write, Run.round_done

    def ends(number, frame):
        heard.append(number)
        raise SystemExit(0)

    def third(self, server_round, arrays):
        if server_round == 3:
            signal.raise_signal(signal.SIGTERM)
            raise ConnectionError("the server is gone")
        return done(self, server_round, arrays)

    def stopped(folder, parts):
        signal.raise_signal(signal.SIGTERM)
        write(folder, parts)

    monkeypatch.setattr(checkpoint_file, "SHARE", math.inf)
    monkeypatch.setattr(*((checkpoint_file, "write", stopped) if while_saving else
                          (Run, "round_done", third)))  # fmt: skip
    before = signal.signal(signal.SIGTERM, ends)
    composed = compose_config(["rounds=9", "nodes=3", "checkpoint_every=2"])
    try:
        with pytest.raises(SystemExit):
            run_local(Job(ROOT, run_config(composed, str(tmp_path)), 3, tmp_path), workers=1)
    finally:
        signal.signal(signal.SIGTERM, before)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["round"], result["ended"], heard) == (2, "interrupted", [signal.SIGTERM])
    assert (tmp_path / checkpoint_file.FILE).exists()


def test_an_emulated_network_is_refused_in_real_time():
    class Real(GridWrapper):
        virtual_seconds = None

    values = run_config(compose_config(["network=lte"]))
    context = Context(1, 1, {}, RecordDict(), values)
    with pytest.raises(ConfigError, match=r"time is real.*give network=ideal"):
        main(Real(job_grid()), context)


class Remote(GridWrapper):
    """A grid of remote nodes, whose states are not in the server's checkpoint."""


@pytest.mark.parametrize("algorithm", ["esgd", "fedavg_f2i_both"])
def test_on_remote_nodes_a_new_run_resumes_from_the_servers_state(tmp_path, monkeypatch, algorithm):
    words = [f"algorithm={algorithm}", "rounds=6", "nodes=2", "batch_size=16"]
    values, done = run_config(composed(*words), str(tmp_path)), Run.round_done

    def run(resume):
        nodes = LocalGrid(make_pool(NodeHostSpec("client.app:app", 2, 1, values), 1), 2)
        app_config = {**values, "resume": resume}
        main(Remote(nodes), Context(1, 0, {}, RecordDict(), app_config))

    def fourth(self, server_round, arrays):
        if server_round == 4:
            raise KeyboardInterrupt
        return done(self, server_round, arrays)

    monkeypatch.setattr(checkpoint_file, "SHARE", math.inf)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "round_done", fourth)
        with pytest.raises(KeyboardInterrupt):
            run(False)
    run(True)
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(7))
    assert rows[-1]["failures"] == 0
    assert rows[-1]["client_updates"] == 12
    assert rows[-1]["loss"] < rows[0]["loss"]
    with pytest.raises(ConfigError, match="this run is finished"):
        run(True)


def test_resuming_needs_the_folder_of_the_run():
    values = {**run_config(composed("nodes=1")), "resume": True}
    with pytest.raises(ConfigError, match="resume needs output="):
        main(job_grid(), Context(1, 0, {}, RecordDict(), values))
