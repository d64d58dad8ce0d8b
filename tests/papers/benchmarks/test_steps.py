"""The bare training loop in `papers/benchmarks/steps.py` takes the application's steps."""

import numpy as np
import pytest
from flwr.app import Context
from flwr.serverapp import Grid

from edgewire.compression.flower import to_vector
from edgewire.conf.load import load_config, run_config
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.node_log import NodeLog
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.objectives.classification import Classification
from edgewire.task.process import configure_process
from papers.benchmarks import steps
from papers.benchmarks.timing import ROOT
from tests.runs import composed, configured

ROUNDS = 12  # more than two epochs


def trained(words: list[str]) -> np.ndarray:
    """Return the final model of a run of the application, float32 (n,)."""
    made, models = composed(*words), []

    class Last(Run):
        def round_done(self, server_round, arrays):
            models[:] = [to_vector(arrays).copy()]
            return super().round_done(server_round, arrays)

    def server_app(grid: Grid, context: Context) -> None:
        config, log = load_config(context.run_config, made.nodes), RunLog("", Classification())
        Last(config, OrderedGrid(grid), log, NodeLog(grid, "", "")).start()

    run_local(Job(ROOT, run_config(made), 4, ROOT, server_app=server_app), workers=1)
    return models[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", steps.ALGORITHMS)
def test_both_make_the_same_model(algorithm: str) -> None:
    configure_process()  # one torch thread, or the sums of the two programs may differ
    words = steps.settings("mlp", algorithm, rounds=ROUNDS)
    loop, losses = steps.Bare(configured(*words)), []
    for _ in range(ROUNDS):
        loop.step()
        losses.append(loop.test_loss())
    np.testing.assert_array_equal(loop.vector.numpy(), trained(words))
    assert losses[-1] < 0.95 * losses[0]
