"""The ServerApp's run, from its start to its end."""

import logging
import math
import signal

import httpx
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from safetensors.torch import load_file

from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.conf.load import run_config
from edgewire.conf.schema import ConfigError
from edgewire.protocol.run_ended import RunEnded
from edgewire.strategy.app import main, mark_warnings
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run import checkpoint_file, checkpointer
from edgewire.strategy.run.node_log import NodeLog
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.objectives.classification import Classification
from tests.grids import grid_of
from tests.local_runs import at_row, local_run, raising
from tests.runs import composed, configured, history_of, result_of


class Tended(GridWrapper):
    """A grid that counts the calls of `tend`."""

    calls = 0

    def tend(self):
        self.calls += 1


def unlogged(grid):
    """Return a run that writes no files."""
    return Run(configured(), OrderedGrid(grid), RunLog("", Classification()), NodeLog(grid, "", ""))


def test_workers_are_tended_while_the_model_is_measured():
    grid = Tended(grid_of())
    run = unlogged(grid)
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


def refused_with(status):
    """Return the error that Flower's grid raises when the server refuses a call."""
    response = httpx.Response(status, request=httpx.Request("POST", "http://server"))
    return httpx.HTTPStatusError("no", request=response.request, response=response)


@pytest.mark.few(2)
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
    at_row(monkeypatch, 4, raising(raised))
    with pytest.raises(type(raised)):
        local_run(tmp_path, "rounds=9", "eval_every=9", "nodes=3")
    result = result_of(tmp_path)
    assert (result["round"], result["ended"], result["stopped"]) == (2, ended, ended)
    first = unlogged(grid_of()).model.state_dict()
    model = load_file(tmp_path / "model.safetensors")
    assert any(not torch.equal(first[name], tensor) for name, tensor in model.items())


@pytest.mark.parametrize("while_saving", [False, True])
def test_an_error_while_a_signal_waits_counts_as_a_stop(tmp_path, monkeypatch, while_saving):
    heard, write = [], checkpoint_file.write

    def ends(number, frame):
        heard.append(number)
        raise SystemExit(0)

    def gone():
        signal.raise_signal(signal.SIGTERM)
        raise ConnectionError("the server is gone")

    def stopped(folder, parts):
        signal.raise_signal(signal.SIGTERM)
        write(folder, parts)

    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    if while_saving:
        monkeypatch.setattr(checkpoint_file, "write", stopped)
    else:
        at_row(monkeypatch, 4, gone)
    before = signal.signal(signal.SIGTERM, ends)
    try:
        with pytest.raises(SystemExit):
            local_run(tmp_path, "rounds=9", "nodes=3", "checkpoint_every=2")
    finally:
        signal.signal(signal.SIGTERM, before)
    result = result_of(tmp_path)
    assert (result["round"], result["ended"], heard) == (2, "interrupted", [signal.SIGTERM])
    assert (tmp_path / checkpoint_file.FILE).exists()


def test_an_emulated_network_is_refused_in_real_time():
    class Real(GridWrapper):
        virtual_seconds = None

    values = run_config(composed("network=lte"))
    context = Context(1, 1, {}, RecordDict(), values)
    with pytest.raises(ConfigError, match=r"time is real.*give network=ideal"):
        main(Real(grid_of()), context)


class Remote(GridWrapper):
    """A grid of remote nodes, whose states are not in the server's checkpoint."""


KEPT = "edgewire personal=[3.*] dataset.holdout=0.2 strategy.fraction_evaluate=1"


@pytest.mark.parametrize("algorithm", ["esgd", "fedavg_f2i_both", KEPT])
def test_on_remote_nodes_a_new_run_resumes_from_the_servers_state(
    tmp_path, monkeypatch, caplog, algorithm
):
    words = [*f"algorithm={algorithm}".split(), "rounds=6", "nodes=2", "batch_size=16"]
    values = run_config(composed(*words), str(tmp_path))

    def run(resume):
        nodes = grid_of(nodes=2, run_config=values)
        app_config = {**values, "resume": resume}
        main(Remote(nodes), Context(1, 0, {}, RecordDict(), app_config))

    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    at_row(monkeypatch, 5, raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(False)
    run(True)
    rows = history_of(tmp_path)
    assert [row["round"] for row in rows] == list(range(7))
    assert rows[-1]["failures"] == 0
    assert rows[-1]["client_updates"] == 12
    assert rows[-1]["loss"] < (rows[0]["loss"] or rows[1]["loss"])
    assert ("their personal layers begin anew" in caplog.text) == (algorithm == KEPT)
    with pytest.raises(ConfigError, match="this run is finished"):
        run(True)


def test_resuming_needs_the_folder_of_the_run():
    values = {**run_config(composed("nodes=1")), "resume": True}
    with pytest.raises(ConfigError, match="resume needs output="):
        main(grid_of(), Context(1, 0, {}, RecordDict(), values))
