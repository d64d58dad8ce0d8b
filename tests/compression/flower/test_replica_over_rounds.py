"""A node's replica (its copy of the server's model) equals the model, also across processes."""

import copy
import pickle

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressionMod
from edgewire.compression.flower.headers import HEADER, HEALS, DownlinkHeader, TrainConfig, written
from edgewire.compression.flower.node.state import MEMORY, checksum, stored_arrays
from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.flower.replica import MODEL, VERSION
from tests.compression.flower.stepping import SteppingServer
from tests.same import expect_same
from tests.strategy.federation import (
    ADAM,
    LAYOUT,
    MOMENTUM,
    NODES,
    SGD,
    TRAINED,
    Federation,
    Trainer,
    app_of,
    assert_models,
    start,
)

pytestmark = pytest.mark.usefixtures("identity")
TOPK = {"sparsifier": "topk", "density": 0.1}
OPTIMIZERS = [SGD, MOMENTUM, ADAM]
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["_target_"][16:])


class TrainingRun(SteppingServer):
    """A server with a log of its steps, and a ClientApp that a test calls directly."""

    def __init__(self, optimizer=ADAM, update="gradient", **compression):
        self.trainer = Trainer(update, optimizer=optimizer, **compression)
        super().__init__(self.trainer.optimizer, LAYOUT, TRAINED)
        self.app = app_of(self.trainer)
        self.contexts = {n: context_of(n) for n in range(1, NODES + 1)}
        self.number = 0

    def ask(self, node, known, model_update=None, **header):
        """Send `node` a model update and return the content of its reply.

        By default, the update is for a node that has version `known` of the model.
        """
        model_update, self.number = model_update or self.steps.model_update(known), self.number + 1
        told = written(DownlinkHeader(**{"number": self.number, **model_update.header, **header}))
        orders = ConfigRecord(TrainConfig(0.1, self.number).config())
        content = RecordDict({"arrays": model_update.arrays, "config": orders, HEADER: told})
        message = Message(content, node, "train.step")
        return self.app(message, self.contexts[node]).content

    def arrays(self, node):
        return stored_arrays(self.contexts[node].state, REPLICA)

    def assert_follows(self, node):
        expect_same(self.arrays(node), self.replica.arrays)
        assert self.trainer.models[node, self.number].tobytes() == self.replica.model.tobytes()


def context_of(node):
    place = {"partition-id": node - 1, "num-partitions": NODES}
    return Context(1, node, place, RecordDict(), {})


@every_optimizer
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_a_node_that_is_ahead_applies_nothing_twice(optimizer, ahead):
    """If replies are lost, the server repeats steps that the node has; the node skips them."""
    course = TrainingRun(optimizer).go(1)
    course.ask(1, None)
    course.go(ahead).ask(1, 1)
    course.ask(1, 1)  # this message holds no new step
    course.assert_follows(1)
    course.go(2).ask(1, 1)
    course.assert_follows(1)


@pytest.mark.parametrize("wrong", ["gap", "future"])
def test_updates_that_do_not_fit_are_refused_and_change_nothing(wrong):
    course = TrainingRun().go(2)
    course.ask(1, None)
    before = {name: array.copy() for name, array in course.arrays(1).items()}
    course.go(2)
    changed = {"base": 3, "rates": [0.1]} if wrong == "gap" else {"base": 0, "rates": [0.1]}
    with pytest.raises(PayloadError, match="a version that this node does not have"):
        course.ask(1, 2, **changed)
    expect_same(course.arrays(1), before)
    course.ask(1, 2)
    course.assert_follows(1)


def test_a_node_without_a_replica_reports_it():
    with pytest.raises(PayloadError, match=HEALS):
        TrainingRun().go(1).ask(1, 0)


def test_nodes_of_a_process_share_one_replica():
    course = TrainingRun().go(1)
    for node in (1, 2):
        course.ask(node, None)
    shared = course.arrays(1)
    assert all(course.arrays(2)[name] is array for name, array in shared.items())
    course.go(2)
    for node in (1, 2):
        course.ask(node, 1)
        course.assert_follows(node)
    assert all(course.arrays(2)[name] is array for name, array in shared.items())


def test_an_old_snapshot_does_not_give_a_node_the_shared_replica():
    course = TrainingRun().go(1)
    old = course.steps.model_update(None)  # this old snapshot arrives late
    course.ask(1, None)
    course.go(1).ask(1, 1)
    course.ask(2, None, old)
    assert course.arrays(1)[VERSION][0] == 2
    assert course.arrays(2)[VERSION][0] == 1
    assert not np.shares_memory(course.arrays(1)[MODEL], course.arrays(2)[MODEL])
    course.ask(2, 1)
    course.assert_follows(2)


def test_a_wrong_checksum_drops_the_replica():
    course = TrainingRun().go(1)
    course.ask(1, None)
    good = course.steps.checksum()
    with pytest.raises(PayloadError, match="not the server's version"):
        course.ask(1, 1, checksum=checksum(start() + 1))
    assert REPLICA not in course.contexts[1].state
    course.ask(1, None, checksum=good)
    course.assert_follows(1)


def travelled(state, how):
    """Return a node's state after a transfer to another process in the way `how`."""
    if how == "copied":
        return copy.deepcopy(state)
    state = pickle.loads(pickle.dumps(state))
    if how == "read only":  # as on Ray
        for record in state.values():
            for array in record.values() if isinstance(record, ArrayRecord) else ():
                array.vector.flags.writeable = False
    return state


@pytest.mark.parametrize("how", ["pickled", "copied", "read only"])
@pytest.mark.parametrize("compression", [{}, TOPK], ids=["dense", "topk"])
def test_a_node_continues_after_its_state_was_transferred(how, compression):
    there, here = (Federation(Trainer(optimizer=ADAM, **compression)) for _ in range(2))

    def travel(server_round):
        there.pool.load({n: travelled(s, how) for n, s in there.pool.states().items()})

    one = there.run(6, after=travel, verify_every=1)
    two = here.run(6, verify_every=1)
    assert one.traffic.failures == two.traffic.failures == 0
    assert_models(there, here.models)


@pytest.mark.parametrize("compression", [{}, TOPK], ids=["dense", "topk"])
def test_whole_models_leave_no_replica(compression):
    federation = Federation(Trainer(optimizer=ADAM, **compression))
    assert federation.run(3, downlink=None).traffic.failures == 0
    if compression:
        states = federation.pool.states()
        assert all(set(states[n]) >= {MEMORY} for n in range(1, NODES + 1))
        assert all(REPLICA not in states[n] for n in range(1, NODES + 1))
    else:
        assert federation.pool.states() == {}  # no node stores any state
    assert set().union(*federation.seen.values()) == {MODEL}


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_the_mean_applied_only_where_a_node_sent(drop):
    """By line 7 of CE-SGD's algorithm, a node applies the mean only to entries that it has sent.

    So its replica (its copy of the model) may differ from the server's model.
    """
    federation = Federation(Trainer(mask=True, sparsifier="esgd", drop=drop, cap=1.0))
    strategy = federation.run(4, mask_received=True)
    assert strategy.traffic.failures == 0
    assert (strategy.train_metrics["drift"] > 0) == (drop > 0)
    for (_, number), model in federation.trainer.models.items():
        followed = model.tobytes() == federation.models[number - 1].tobytes()
        assert followed == (drop == 0 or number == 1)
    np.testing.assert_array_equal(
        stored_arrays(federation.pool.states()[1], REPLICA)[MODEL], federation.models[3]
    )


@pytest.mark.parametrize("lacks", ["layout", "optimizer"])
def test_a_node_without_a_layout_or_an_optimizer_reports_it(lacks):
    course = TrainingRun().go(1)
    app = CompressionMod("float32", layout=LAYOUT if lacks == "optimizer" else None)
    model_update = course.steps.model_update(None)
    told = written(DownlinkHeader(number=1, **model_update.header))
    message = Message(RecordDict({"arrays": model_update.arrays, HEADER: told}), 1, "train")
    with pytest.raises(PayloadError, match=f"knows no {lacks}"):
        app(message, context_of(1), lambda *_: pytest.fail("the app was called"))
