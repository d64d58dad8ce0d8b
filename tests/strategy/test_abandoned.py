"""A server continues from a saved state that is older than the states of its nodes.

The messages under way are lost. This happens on real nodes when the ServerApp of a run was killed
and a new run continues from its checkpoint.
"""

from contextlib import suppress
from copy import deepcopy

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from edgewire.compression.flower import to_vector
from edgewire.compression.flower.node.state import stored_arrays
from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.flower.replica import MODEL
from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.conf.build import data_of, model_of
from edgewire.conf.load import run_config
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.strategy.factory import made
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.task.flat_model import FlatModel
from tests.grids import pool_of
from tests.runs import composed, configured

SMALL = ["dataset=digits", "batch_size=16", "nodes=4"]
PUSHES = ["strategy.pushes=60", "network=ideal", "eval_every=1"]
CUT = ["rounds=18", "model=four_layers", "batch_size=32", "strategy.segment_every=3"]
RUNS = {
    "steps down": ["algorithm=esgd", "rounds=18", "strategy.verify_every=1"],
    "momentum": ["algorithm=dgc", "rounds=18", "strategy.verify_every=1"],
    "deltas": ["algorithm=fedavg_topk", "rounds=9"],
    "over a link": ["algorithm=fedavg_f2i_both", "rounds=9", "local_steps=2", "compression=esgd"],
    "pushes": ["algorithm=asgd", *PUSHES, "compression=topk"],
    "differences": ["algorithm=adacomp", *PUSHES, "downlink=topk", "downlink.density=0.1"],
    "mixed": ["algorithm=fedasync", *PUSHES, "local_steps=1"],
    "cut, synthetic gradients": ["algorithm=synthetic_gradients", *CUT],
    "cut, in sequence": ["algorithm=split_backprop", *CUT],
}


class Stopped(Exception):
    """Raised to stop the server."""


class Server:
    """The server of a run; `newest` is the last recorded model."""

    def __init__(self, words):
        self.config, self.newest = configured(*words), None
        self.data = data_of(self.config)
        self.scheme = made(self.config, self.data)

    def serve(self, grid, on_state_complete):
        """Train; `on_state_complete` is called when the state can be saved, and may stop it."""
        model = FlatModel(model_of(self.config, self.data), "cpu")
        self.scheme.on_state_complete = on_state_complete
        with suppress(Stopped):
            self.scheme.start(
                grid,
                ArrayRecord(model.state_dict()),
                self.config.rounds,
                self.config.timeout,
                ConfigRecord({"lr": self.config.lr}),
                evaluate_fn=self._record,
            )

    def _record(self, number, model):
        self.newest = to_vector(model).copy()


class Real(GridWrapper):
    """A grid that acts like one of real nodes: it has no virtual time and knows no future event."""

    @property
    def virtual_seconds(self):
        return None

    @property
    def next_change(self):
        return None


def begun(words, states):
    """Return a pool of nodes with these states, and its grid."""
    config, pool = configured(*words), pool_of(nodes=4, run_config=run_config(composed(*words)))
    pool.load(states)
    return pool, OrderedGrid(Real(LocalGrid(pool, 4, VirtualClock(config.network, config.seed))))


def serve(words, grid, state=None, save_at=None, stop_at=None, back=(), at_save=lambda: None):
    """Run a server; return its scheme, its saved state, and the last recorded model.

    `back` holds the nodes whose states are as old as `state`. `at_save` is called once the state
    is saved.
    """
    server, saved = Server(words), []
    scheme, rounds = server.scheme, server.config.rounds
    if state is not None:
        scheme.load(state)
        scheme.abandon(back)

    def on_state_complete():
        if scheme.done >= (save_at or rounds) and not saved:
            saved.append(scheme.save())
            at_save()
        if scheme.done >= (stop_at or rounds + 1):
            raise Stopped

    server.serve(grid, on_state_complete)
    return scheme, saved, server.newest


@pytest.mark.few(2)
@pytest.mark.parametrize("keeps", [True, False], ids=["memories kept", "memories lost"])
@pytest.mark.parametrize("name", RUNS)
def test_a_new_run_continues_with_nodes_that_are_ahead(name, keeps):
    words = [*SMALL, *RUNS[name]]
    rounds = configured(*words).rounds
    pool, grid = begun(words, {})
    before, (state,), _ = serve(words, grid, save_at=rounds // 3, stop_at=rounds // 2)
    assert before.done >= rounds // 2
    assert bool(pool.states()) == (name != "mixed")
    pool, grid = begun(words, pool.states() if keeps else {})
    after, _, model = serve(words, grid, state)
    assert after.done == rounds
    assert after.traffic.failures == before.traffic.failures == 0
    assert np.isfinite(model).all()
    replicas = [stored_arrays(each, REPLICA) for each in pool.states().values() if REPLICA in each]
    if name in ("steps down", "momentum"):
        # All nodes have the same replica.
        (last,) = {replica[MODEL].tobytes() for replica in replicas}
        assert np.abs(np.frombuffer(last, np.float32) - model).max() < 1


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["steps down", "momentum", "deltas", "over a link"])
def test_with_nodes_in_the_saved_state_the_run_ends_as_if_never_stopped(name):
    words = [*SMALL, *RUNS[name]]
    rounds, before = configured(*words).rounds, []
    _, grid = begun(words, {})
    whole, _, undisturbed = serve(words, grid)
    pool, grid = begun(words, {})
    _, (state,), _ = serve(words, grid, save_at=rounds // 3, stop_at=rounds // 2,
                           at_save=lambda: before.append(deepcopy(pool.states())))  # fmt: skip
    _, grid = begun(words, before[0])
    after, _, model = serve(words, grid, state, back=set(grid.get_node_ids()))
    assert np.array_equal(model, undisturbed)
    assert after.traffic == whole.traffic
