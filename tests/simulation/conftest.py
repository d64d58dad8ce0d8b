import pytest

from simulation.clock import VirtualClock
from simulation.grid import LocalGrid
from simulation.host import HostSpec
from simulation.workers import make_pool
from tests.simulation.grids import NODES, app


@pytest.fixture
def grid(request):
    made = []

    def make(workers, network=None, nodes=NODES, seed=0):
        pool = make_pool(HostSpec(app, nodes, 1, {}), workers)
        made.append(pool)
        return LocalGrid(pool, nodes, VirtualClock(network, seed))

    yield make
    for pool in made:
        pool.close()
