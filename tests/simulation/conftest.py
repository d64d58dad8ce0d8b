import pytest

from simulation import workers as workers_module
from simulation.clock import VirtualClock
from simulation.grid import LocalGrid
from simulation.host import HostSpec
from simulation.queue import Queue
from simulation.workers import make_pool
from tests.simulation.grids import NODES, app


@pytest.fixture
def grid(request):
    made = []

    def make(workers, network=None, nodes=NODES, seed=0, client=app, clock=None):
        pool = make_pool(HostSpec(client, nodes, 1, {}), workers)
        made.append(pool)
        return LocalGrid(pool, nodes, clock or VirtualClock(network, seed))

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def queue(monkeypatch):
    """What worker processes are given and answer: `taken`, ids; `answers`, nodes."""

    class Watched(Queue):
        taken, answers = [], []

        def take(self, worker):
            message = super().take(worker)
            if message is not None:
                self.taken.append(message.metadata.message_id)
            return message

        def answered(self, node, has_state):
            self.answers.append(node)
            super().answered(node, has_state)

    monkeypatch.setattr(workers_module, "Queue", Watched)
    return Watched
