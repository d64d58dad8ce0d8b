import pytest

from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers import pool as pool_module
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool
from edgewire.simulation.workers.work_queue import WorkQueue
from tests.simulation.grids import NODES, app


@pytest.fixture
def grid(request):
    made = []

    def make(workers, network=None, nodes=NODES, seed=0, client=app, clock=None):
        pool = make_pool(NodeHostSpec(client, nodes, 1, {}), workers)
        made.append(pool)
        return LocalGrid(pool, nodes, clock or VirtualClock(network, seed))

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def queue(monkeypatch):
    """Return the class of the work queue, changed so that it records the work.

    `taken`: the ids of the messages that workers took. `answers`: the nodes that replied.
    """

    class Watched(WorkQueue):
        taken, answers = [], []

        def take(self, worker):
            message = super().take(worker)
            if message is not None:
                self.taken.append(message.metadata.message_id)
            return message

        def answered(self, node, has_state):
            self.answers.append(node)
            super().answered(node, has_state)

    monkeypatch.setattr(pool_module, "WorkQueue", Watched)
    return Watched
