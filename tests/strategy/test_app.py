"""The run on the server."""

from flwr.app import ArrayRecord

from compression.flower.grids import GridWrapper
from simulation.grid import LocalGrid
from simulation.host import HostSpec
from simulation.workers import make_pool
from strategy.app import Run
from strategy.nodes import OrderedGrid
from strategy.records import Records
from tests.runs import configured


class Tended(GridWrapper):
    """Counts how often it is tended."""

    calls = 0

    def tend(self):
        self.calls += 1


def test_workers_are_tended_while_the_model_is_measured():
    grid = Tended(LocalGrid(make_pool(HostSpec("client.app:app", 1, 1, {}), 1), 1))
    run = Run(configured(), OrderedGrid(grid), Records(""))
    run.round_done(0, ArrayRecord(run.model.state_dict()))
    assert grid.calls > 1
