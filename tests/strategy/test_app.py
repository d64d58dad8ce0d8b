"""The run on the server."""

from types import SimpleNamespace

from flwr.app import ArrayRecord

from strategy.app import Run
from strategy.nodes import OrderedGrid
from strategy.records import Records
from tests.runs import configured


def test_workers_are_tended_while_the_model_is_measured():
    calls = []
    grid = OrderedGrid(SimpleNamespace(tend=lambda: calls.append(1), virtual_seconds=0.0))
    run = Run(configured(), grid, Records(""))
    run.round_done(0, ArrayRecord(run.model.state_dict()))
    assert len(calls) > 1
