"""If a server stops after a third of a run, a new server with its state gets the same result.

The nodes and the messages under way outlive the server, as on a SuperLink.
"""

import multiprocessing

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from safetensors.numpy import save

from edgewire.compression.flower.replica import Replica
from edgewire.conf.load import run_config
from edgewire.simulation.clock import VirtualClock
from edgewire.strategy.aggregation import MeanState
from edgewire.strategy.collector import RoundCollectorState
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.serialization import StateError, from_bytes, to_bytes
from edgewire.task.optimizers import SGD
from tests.grids import grid_of
from tests.runs import composed
from tests.strategy.remote import RemoteGrid, serve
from tests.strategy.servers import Server, Stopped

SMALL = ["dataset=digits", "model=mlp", "batch_size=16"]
SLOW = ["network=classes", "network.waiting=exponential"]
OFTEN = ["strategy.record_every=6", "eval_every=6"]
RUNS = {
    "averaging, steps down": ["algorithm=esgd", "rounds=18"],
    "averaging, lossy steps": ["algorithm=dgc", "rounds=18", "downlink=topk", "nodes=3"],
    "averaging, adam, losses": [
        "algorithm=cesgd", "rounds=18", "strategy/optimizer=adam", "network=lte",
        "network.loss=0.2", "timeout=0.4", "strategy.quorum=0.75",
    ],
    "deltas, drawn nodes": [
        "algorithm=fedavg_topk", "strategy=sparse_averaging", "strategy.update=delta", "rounds=6",
        "strategy.fraction_train=0.5",
    ],
    "asynchronous, counted": ["algorithm=adacomp", "nodes=12", "strategy.pushes=90", *SLOW, *OFTEN],
    "asynchronous, differences": [
        "algorithm=adacomp", "nodes=12", "strategy.pushes=90", "downlink=topk",
        "downlink.density=0.1", *SLOW, *OFTEN,
    ],
    "asynchronous, buffered": [
        "algorithm=fedbuff", "nodes=6", "strategy.pushes=36", "local_steps=2", "local_epochs=1",
        *SLOW, *OFTEN,
    ],
    "asynchronous, mixed": ["algorithm=fedasync", "nodes=6", "strategy.pushes=24", *SLOW, *OFTEN],
}  # fmt: skip
CUT = {
    "cut, synthetic gradients": ["algorithm=synthetic_gradients", "strategy.schedule=async"],
    "cut, micro-batches": [
        "algorithm=split_backprop", "strategy.schedule=pipeline", "strategy.micro_batches=2",
    ],
}  # fmt: skip
for name, words in CUT.items():
    RUNS[name] = [
        *words, "model=four_layers", "dataset=digits", "batch_size=16", "rounds=12", "eval_every=3",
    ]  # fmt: skip


def serve_over(connection, words, state, until):
    """Run a server whose grid is at the pipe's other end; stop it once `until` rounds are done."""
    server = Server(words)
    if state is not None:
        server.scheme.load(state)

    def on_state_complete():
        if until is not None and server.records and server.records[-1][0] >= until:
            raise Stopped

    server.serve(OrderedGrid(RemoteGrid(connection)), on_state_complete)
    connection.send(("end", (server.records, server.scheme.save())))


def in_a_process(grid, *arguments):
    """Run a server in a separate process; return its recorded models and its saved state."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=serve_over, args=(there, *arguments))
    process.start()
    there.close()
    found = serve(grid, here)
    process.join()
    assert process.exitcode == 0
    return found


def nodes(words):
    config = Server(words).config  # imports modules before the servers are forked
    clock = VirtualClock(config.network, config.seed)
    return grid_of(nodes=config.nodes, run_config=run_config(composed(*words)), clock=clock)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_ends_bit_for_bit_like_an_uninterrupted_one(name):
    words = RUNS[name] if name in CUT else [*SMALL, *RUNS[name]]
    whole, _ = in_a_process(nodes(words), words, None, None)
    third = whole[-1][0] // 3
    grid = nodes(words)
    before, state = in_a_process(grid, words, None, third)
    assert third <= before[-1][0] < whole[-1][0]
    after, _ = in_a_process(grid, words, state, None)
    assert before + after == whole


def test_a_state_of_another_strategy_is_refused():
    both = "averaging, steps down", "asynchronous, counted"
    esgd, adacomp = (Server([*SMALL, *RUNS[name]]).scheme for name in both)
    with pytest.raises(StateError, match="hold a PushesState, not a AveragingState"):
        esgd.load(adacomp.save())
    for wrong in (b"", b"x" * 100, esgd.save()[:-3]):
        with pytest.raises(StateError, match="hold no strategy's state"):
            esgd.load(wrong)


def test_an_array_that_occurs_twice_is_shared_again_after_loading():
    array = np.arange(5, dtype=np.uint32)
    state = MeanState(np.ones(3, np.float32), [array, array], True, 0.5)
    found = from_bytes(MeanState, to_bytes(state))
    assert found.sets[0] is found.sets[1]
    assert found.sets[0].dtype == np.uint32
    assert found.dense
    empty = from_bytes(RoundCollectorState, to_bytes(RoundCollectorState()))
    assert empty == RoundCollectorState()


@pytest.mark.parametrize("head", [b"5", b"null", b"[1]", b"[" * 100_000])
def test_invalid_bytes_are_refused_as_a_state(head):
    data = save({"state": np.frombuffer(head, np.uint8)})
    with pytest.raises(StateError):
        from_bytes(RoundCollectorState, data)
    with pytest.raises(StateError):
        from_bytes(RoundCollectorState, None)


def test_a_state_of_another_model_is_refused():
    kept = Replica.start(SGD(), 3, np.zeros(3, np.float32)).arrays
    arrays = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    with pytest.raises(ValueError, match="of another model or optimizer: 3 entries, not 4"):
        Replica.of(SGD(), arrays, kept)
