"""A node's end of averaging: it follows the server's model, wherever its state comes from."""

import copy
import pickle

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client.node import Node
from client.worker import FOLLOWED, Worker
from compression import PayloadError, decode, make_codec
from compression.flower import payload_of
from compression.flower.state import MEMORY, checksum, own_array
from strategy.versions import Versions
from task.replica import MODEL, VERSION, Replica
from tests.strategy.federation import (
    ADAM,
    LAYOUT,
    MOMENTUM,
    NODES,
    SGD,
    TRAINED,
    Federation,
    Trainer,
    gradient,
    start,
)

TOPK = {"sparsifier": "topk", "density": 0.1}
OPTIMIZERS = [SGD, MOMENTUM, ADAM]
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["_target_"][16:])


class Dialogue:
    """A server's versions, and a worker whose nodes are asked by hand."""

    def __init__(self, optimizer=ADAM, **compression):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        self.trainer = Trainer(optimizer=optimizer, **compression)
        self.worker = Worker(self.trainer)
        self.replica = Replica.start(self.worker._optimizer, TRAINED, start())
        self.versions = Versions(self.replica, LAYOUT, follow=True)
        self.contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in range(1, NODES + 1)}
        self.round = 0

    def steps(self, count=1):
        """Let the server go on by itself."""
        for _ in range(count):
            number = self.replica.version
            draw = np.random.default_rng([99, number])
            indices = np.sort(draw.choice(LAYOUT.size, 5, replace=False)).astype(np.uint32)
            values = draw.normal(size=5).astype(np.float32)
            self.replica.apply(indices, values, 0.1)
            payload = make_codec(coder="raw").encode_sparse(indices, values, LAYOUT)
            self.versions.add(payload, 0.1)
        return self

    def ask(self, node, known, **config):
        """Send what a node of version `known` lacks; return the answer's content."""
        parcel, self.round = self.versions.parcel(known), self.round + 1
        told = {"server-round": self.round, "lr": 0.1, "applied": 0, **parcel.config, **config}
        content = RecordDict({"arrays": parcel.arrays, "config": ConfigRecord(told)})
        message = Message(content, node, "train.step")
        message.metadata.__dict__["_message_id"] = str(self.round)
        place = Node(node - 1, NODES)
        return self.worker.step(message, place, self.contexts[node]).content

    def arrays(self, node):
        return {n: own_array(a) for n, a in self.contexts[node].state[FOLLOWED].items()}

    def assert_follows(self, node):
        own = self.arrays(node)
        assert own.keys() == self.replica.arrays.keys()
        for name, array in self.replica.arrays.items():
            np.testing.assert_array_equal(own[name], array)
        assert self.trainer.models[node, self.round].tobytes() == self.replica.model.tobytes()


@every_optimizer
def test_a_node_follows_through_snapshots_and_updates(optimizer):
    dialogue = Dialogue(optimizer)
    base = None
    for missed in (0, 1, 0, 3, 2):
        dialogue.steps(missed).ask(1, base, checksum=dialogue.versions.checksum())
        dialogue.assert_follows(1)
        base = dialogue.replica.version


@every_optimizer
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_a_node_that_is_ahead_applies_nothing_twice(optimizer, ahead):
    """Its answers were lost: the server builds on a version long behind it."""
    dialogue = Dialogue(optimizer).steps(1)
    dialogue.ask(1, None)
    dialogue.steps(ahead).ask(1, 1)
    dialogue.ask(1, 1)  # nothing new at all
    dialogue.assert_follows(1)
    dialogue.steps(2).ask(1, 1)
    dialogue.assert_follows(1)


@pytest.mark.parametrize("wrong", ["gap", "future"])
def test_updates_that_do_not_fit_are_refused_and_change_nothing(wrong):
    dialogue = Dialogue().steps(2)
    dialogue.ask(1, None)
    before = {name: array.copy() for name, array in dialogue.arrays(1).items()}
    dialogue.steps(2)
    changed = {"base": 3, "rates": [0.1]} if wrong == "gap" else {"base": 0, "rates": [0.1]}
    with pytest.raises(PayloadError, match="has version 2"):
        dialogue.ask(1, 2, **changed)
    for name, array in dialogue.arrays(1).items():
        np.testing.assert_array_equal(array, before[name])
    dialogue.ask(1, 2)
    dialogue.assert_follows(1)


def test_a_node_without_a_replica_says_so():
    with pytest.raises(PayloadError, match="sent whole"):
        Dialogue().steps(1).ask(1, 0)


def test_nodes_of_a_process_share_one_replica():
    dialogue = Dialogue().steps(1)
    for node in (1, 2):
        dialogue.ask(node, None)
    shared = dialogue.arrays(1)
    assert all(dialogue.arrays(2)[name] is array for name, array in shared.items())
    dialogue.steps(2)
    for node in (1, 2):
        dialogue.ask(node, 1)
        dialogue.assert_follows(node)
    assert all(dialogue.arrays(2)[name] is array for name, array in shared.items())


def test_who_gets_an_old_snapshot_again_is_not_given_the_others_progress():
    dialogue = Dialogue().steps(1)
    old = dialogue.versions.parcel(None)
    dialogue.ask(1, None)
    dialogue.steps(1).ask(1, 1)
    dialogue.versions._cache[None] = old  # a message that was under way for long
    dialogue.ask(2, None)
    assert dialogue.arrays(1)[VERSION][0] == 2
    assert dialogue.arrays(2)[VERSION][0] == 1
    assert not np.shares_memory(dialogue.arrays(1)[MODEL], dialogue.arrays(2)[MODEL])
    dialogue.ask(2, 1)
    dialogue.assert_follows(2)


def test_a_wrong_checksum_drops_the_replica():
    dialogue = Dialogue().steps(1)
    dialogue.ask(1, None)
    good = dialogue.versions.checksum()
    with pytest.raises(PayloadError, match="not the server's"):
        dialogue.ask(1, 1, checksum=checksum(start() + 1))
    assert FOLLOWED not in dialogue.contexts[1].state
    dialogue.ask(1, None, checksum=good)
    dialogue.assert_follows(1)


def travelled(state, how):
    """Return a node's state as it comes out of another process."""
    if how == "copied":
        return copy.deepcopy(state)
    state = pickle.loads(pickle.dumps(state))
    if how == "read only":  # as Ray's are
        for record in state.values():
            for array in record.values() if isinstance(record, ArrayRecord) else ():
                array.vector.flags.writeable = False
    return state


@pytest.mark.parametrize("how", ["pickled", "copied", "read only"])
@pytest.mark.parametrize("compression", [{}, TOPK], ids=["dense", "topk"])
def test_a_state_that_travels_goes_on_the_same(how, compression):
    there, here = (Federation(Trainer(optimizer=ADAM, **compression)) for _ in range(2))

    def travel(server_round):
        for context in there.pool._host._contexts.values():
            context.state = travelled(context.state, how)

    one = there.run(6, after=travel, verify_every=1)
    two = here.run(6, verify_every=1)
    assert one.traffic.failures == two.traffic.failures == 0
    for left, right in zip(there.models, here.models, strict=True):
        assert left.tobytes() == right.tobytes()


def test_a_replica_from_elsewhere_is_copied_once():
    dialogue = Dialogue().steps(1)
    dialogue.ask(1, None)
    dialogue.contexts[1].state = travelled(dialogue.contexts[1].state, "read only")
    dialogue.steps(1).ask(1, 1)
    first = dialogue.arrays(1)[MODEL]
    dialogue.steps(1).ask(1, 2)
    assert dialogue.arrays(1)[MODEL] is first
    dialogue.assert_follows(1)


@pytest.mark.parametrize("compression", [{}, TOPK], ids=["dense", "topk"])
def test_whole_models_leave_no_replica(compression):
    federation = Federation(Trainer(optimizer=ADAM, **compression))
    assert federation.run(3, downlink=None).traffic.failures == 0
    if compression:
        assert all(set(federation.context(n).state) >= {MEMORY} for n in range(1, NODES + 1))
        assert all(FOLLOWED not in federation.context(n).state for n in range(1, NODES + 1))
    else:
        assert federation.pool._host._contexts == {}  # nothing to keep at all
    assert set().union(*federation.seen.values()) == {MODEL}


@pytest.mark.parametrize("update", ["gradient", "delta"])
def test_an_answer_is_the_update_encoded(update):
    dialogue = Dialogue(SGD)
    dialogue.worker._gradient = update == "gradient"
    content = dialogue.ask(1, None)
    vector, _ = decode(payload_of(content)[1], LAYOUT)
    np.testing.assert_allclose(vector, gradient(1, 1), atol=0 if update == "gradient" else 1e-6)
    assert content["metrics"]["num-examples"] == 1
    assert content["metrics"]["seconds"] >= 0


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_the_mean_applied_only_where_a_node_sent(drop):
    """CE-SGD's line 7: copies drift apart, unless everything is sent."""
    federation = Federation(Trainer(mask=True, sparsifier="esgd", drop=drop, cap=1.0))
    strategy = federation.run(4, mask_received=True)
    assert strategy.traffic.failures == 0
    assert (strategy.train_metrics["drift"] > 0) == (drop > 0)
    for (_, number), model in federation.trainer.models.items():
        followed = model.tobytes() == federation.models[number - 1].tobytes()
        assert followed == (drop == 0 or number == 1)
    np.testing.assert_array_equal(federation.replica(1)[MODEL], federation.models[3])
