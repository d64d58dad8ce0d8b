"""A replica (a copy of the server's model) counts steps; BatchNorm statistics are replaced."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.compression.flower.compact_records import compact, restored
from edgewire.compression.flower.headers import DownlinkHeader
from edgewire.compression.flower.node.state import checksum, store_arrays, stored_arrays
from edgewire.compression.flower.node_replica import REPLICA, NodeReplica
from edgewire.compression.flower.records import payload_record
from edgewire.compression.flower.replica import MODEL, VERSION, Replica
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.task.optimizers import SGD, Adam, Momentum
from tests.same import expect_same

SIZE, TRAINED = 30, 22
RULES = [SGD(), Momentum(0.5), Momentum(0.5, lazy=True), Adam(), Adam(lazy=True)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)


def start(rule, trained=TRAINED):
    model = np.linspace(-1, 1, SIZE, dtype=np.float32)
    replica = Replica.start(rule, trained, model)
    assert replica.model is model  # no copy
    return replica


def update(seed, share):
    """Return a random index set and values for it."""
    draw = np.random.default_rng(seed)
    indices = np.flatnonzero(draw.random(SIZE) < share).astype(np.uint32)
    return indices, draw.normal(size=len(indices)).astype(np.float32)


def dense(indices, values):
    vector = np.zeros(SIZE, dtype=np.float32)
    vector[indices] = values
    return vector


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1), rule=st.sampled_from(RULES))
def test_parameters_take_the_optimisers_step_and_statistics_the_values(seed, share, rule):
    replica = start(rule)
    x, state = replica.model[:TRAINED].copy(), rule.state(TRAINED)
    rest = replica.model[TRAINED:].copy()
    for number, lr in enumerate((0.5, 0.01, 3.0), 1):
        indices, values = update([seed, number], share)
        replica.apply(indices, values, lr)
        trained = indices < TRAINED
        rule.step(x, state, indices[trained], values[trained], lr, number)
        rest[indices[~trained] - TRAINED] = values[~trained]  # independent of the learning rate
    np.testing.assert_array_equal(replica.model, np.concatenate([x, rest]))
    expect_same({name: replica.arrays[name] for name in rule.names}, state)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), rule=st.sampled_from(RULES[:2] + RULES[3:4]))
def test_a_whole_update_and_its_entries_are_the_same(seed, rule):
    whole, sparse = start(rule), start(rule)
    for number in range(4):
        indices, values = update([seed, number], 0.4)
        cut = np.searchsorted(indices, TRAINED)  # every update holds all statistics
        rest = np.arange(TRAINED, SIZE, dtype=np.uint32)
        indices = np.concatenate([indices[:cut], rest])
        values = np.concatenate([values[:cut], np.full(len(rest), number, np.float32)])
        whole.apply(None, dense(indices, values), 0.1)
        sparse.apply(indices, values, 0.1)
    expect_same(whole.arrays, sparse.arrays)


@every_rule
def test_whoever_shares_the_arrays_shares_the_replica(rule):
    one, alone = start(rule), start(rule)
    other = Replica(rule, TRAINED, one.arrays)
    own = Replica(rule, TRAINED, {name: array.copy() for name, array in one.arrays.items()})
    for number, replica in enumerate((one, other, one), 1):
        replica.apply(*update(number, 0.5), 0.1)
        alone.apply(*update(number, 0.5), 0.1)
    assert one.version == other.version == alone.version == 3
    assert own.version == 0
    assert other.model is one.model
    expect_same(other.arrays, alone.arrays)
    np.testing.assert_array_equal(own.model, start(rule).model)


def test_nodes_of_a_process_share_what_they_decode_from_a_carrier():
    layout, values = Layout(("w",), ((SIZE,),), ("float32",)), np.ones(SIZE, np.float32)
    made = compact(RecordDict({"arrays": payload_record(make_codec().encode(values, layout))}))
    node, asked = NodeReplica(layout), [restored(made)["arrays"] for _ in range(2)]
    one, two = (node.model(each, DownlinkHeader(), RecordDict()).model.vector for each in asked)
    np.testing.assert_array_equal(one, values)
    assert one is two


@pytest.mark.parametrize("version", [None, 0, 3])
def test_a_node_makes_the_model_before_training_again_whatever_version_it_has(version):
    seeded, state = np.linspace(0, 1, SIZE, dtype=np.float32), RecordDict()
    if version is not None:
        stored = seeded if version == 0 else seeded + 1
        store_arrays(state, REPLICA, {MODEL: stored, VERSION: np.array([version])})
    node = NodeReplica(Layout(("w",), ((SIZE,),), ("float32",)), seeded=seeded)
    header = DownlinkHeader(base=0, version=0, checksum=checksum(seeded))
    np.testing.assert_array_equal(node.model(ArrayRecord(), header, state).model.vector, seeded)
    assert stored_arrays(state, REPLICA)[VERSION] == 0
