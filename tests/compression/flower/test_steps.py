"""What each node lacks of the newest model, and what it is sent: by hand it becomes that model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Layout, decode, decode_update, make_codec
from compression.flower.arrays import STYPE
from compression.flower.state import checksum
from strategy.versions import Versions
from task.optimizers import SGD, Adam, Momentum
from task.replica import MODEL, VERSION, Replica

LAYOUT = Layout(("weight", "bias", "running_mean"), ((20, 20), (4,), (6,)), ("float32",) * 3)
SIZE, TRAINED = 410, 404
CODEC = make_codec(coder="raw")
RULES = [SGD(), Momentum(0.5, lazy=True), Adam()]


class Server:
    """A replica that goes on by random updates, and the versions of it."""

    def __init__(self, rule=RULES[0], follow=True):
        self.rule = rule
        self.replica = Replica.start(rule, TRAINED, np.linspace(-1, 1, SIZE, dtype=np.float32))
        self.versions = Versions(self.replica, LAYOUT, follow)
        self.payloads, self.models = [b""], [self.replica.model.copy()]  # by version

    def step(self, entries=3):
        number = self.replica.version + 1
        draw = np.random.default_rng(number)
        indices = np.sort(draw.choice(SIZE, entries, replace=False)).astype(np.uint32)
        values = draw.normal(size=entries).astype(np.float32)
        self.replica.apply(indices, values, rate(number))
        self.payloads.append(CODEC.encode_sparse(indices, values, LAYOUT))
        self.versions.add(self.payloads[-1], rate(number))
        self.models.append(self.replica.model.copy())

    def steps(self, count, entries=3):
        for _ in range(count):
            self.step(entries)
        return self

    def parcel_for(self, node):
        return self.versions.parcel(self.versions.base_of(node))


def rate(number):
    return 0.5 / number


def contents(parcel):
    return {name: array.data for name, array in parcel.arrays.items()}


def is_snapshot(parcel):
    return MODEL in parcel.arrays


def snapshot(server, parcel):
    """Return the replica that a snapshot holds."""
    arrays = {VERSION: np.array([parcel.config["version"]])}
    for name, payload in contents(parcel).items():
        arrays[name] = decode(payload, LAYOUT if name == MODEL else memory_layout(name))[0].copy()
    return Replica(server.rule, TRAINED, arrays)


def memory_layout(name):
    return Layout((name,), ((TRAINED,),), ("float32",))


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_node_that_is_not_known_gets_all_there_is(rule):
    server = Server(rule).steps(4)
    parcel = server.parcel_for(7)
    assert server.versions.base_of(7) is None
    assert set(parcel.arrays) == {MODEL, *rule.names}
    assert parcel.config == {"version": 4}
    own = snapshot(server, parcel)
    for name, array in server.replica.arrays.items():
        np.testing.assert_array_equal(own.arrays[name], array)
        assert own.arrays[name].dtype == array.dtype
    assert server.versions.checksum() == checksum(own.model)


@pytest.mark.parametrize("missing", range(5))
def test_a_node_gets_exactly_what_it_lacks_in_order(missing):
    server = Server().steps(6 - missing)
    server.versions.confirm(7, server.replica.version)
    server.steps(missing, entries=1)
    base = 6 - missing
    assert server.versions.base_of(7) == base
    parcel = server.parcel_for(7)
    assert list(contents(parcel)) == [str(n) for n in range(base + 1, 7)]
    assert list(contents(parcel).values()) == server.payloads[base + 1 :]
    assert parcel.config == {"base": base, "rates": [rate(n) for n in range(base + 1, 7)]}
    assert parcel.bytes == sum(map(len, server.payloads[base + 1 :]))
    assert all(array.stype == STYPE for array in parcel.arrays.values())


@settings(deadline=None, max_examples=60)
@given(
    rule=st.sampled_from(RULES), events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)))
)
def test_whatever_is_missed_a_node_that_applies_its_parcel_is_up_to_date(rule, events):
    """Three nodes: one is asked in each round, and its answer arrives, is lost or is an error."""
    server, nodes = Server(rule), {}
    for node, fate in events:
        parcel = server.parcel_for(node)
        if is_snapshot(parcel):
            nodes[node] = snapshot(server, parcel)
        else:
            base, rates = parcel.config["base"], parcel.config["rates"]
            own = nodes[node]
            for version in range(own.version + 1, base + len(rates) + 1):
                update = decode_update(contents(parcel)[str(version)], LAYOUT)
                own.apply(update.indices, update.values, rates[version - base - 1])
        for name, array in server.replica.arrays.items():
            np.testing.assert_array_equal(nodes[node].arrays[name], array)
        if fate == 0:
            server.versions.lost(node)
        elif fate > 1:  # at 1 the answer is lost: the server does not know
            server.versions.confirm(node, server.replica.version)
        server.steps(fate // 2, entries=4 * fate**2)


def test_a_node_whose_answer_was_an_error_gets_a_snapshot():
    server = Server().steps(2)
    server.versions.confirm(7, 2)
    server.versions.confirm(8, 2)
    server.versions.lost(7)
    server.versions.lost(9)  # was not known at all
    assert is_snapshot(server.parcel_for(7))
    assert not is_snapshot(server.parcel_for(8))
    server.versions.confirm(7, 2)
    assert not is_snapshot(server.parcel_for(7))


def test_a_node_that_was_away_for_long_gets_a_snapshot():
    server = Server().steps(1)
    server.versions.confirm(7, 1)
    small = 0
    while not is_snapshot(server.parcel_for(7)):
        small = server.parcel_for(7).bytes
        server.step(entries=1)
        assert server.replica.version < 100
    whole = sum(a.nbytes for name, a in server.replica.arrays.items() if name != VERSION)
    assert 0 < small <= whole
    assert server.replica.version > 2
    server.versions.confirm(8, server.replica.version - 1)  # who lacks less still gets that
    assert not is_snapshot(server.parcel_for(8))


def test_updates_larger_than_a_snapshot_are_not_sent():
    server = Server()
    server.versions.confirm(7, 0)
    server.step(entries=SIZE)  # indices and values: about twice the model
    assert len(server.payloads[1]) > 4 * SIZE
    assert server.versions.base_of(7) == 0
    parcel = server.parcel_for(7)
    assert is_snapshot(parcel)
    assert parcel.config == {"version": 1}
    assert parcel is server.versions.parcel(None)


def test_nodes_alike_get_the_same_object_until_the_model_changes():
    server = Server().steps(3)
    for node in (7, 8):
        server.versions.confirm(node, 2)
    assert server.parcel_for(7) is server.parcel_for(8)
    assert server.parcel_for(5) is server.parcel_for(6)
    before = server.parcel_for(7), server.parcel_for(5)
    server.step(entries=1)
    assert server.parcel_for(7) is not before[0]
    assert server.parcel_for(5) is not before[1]
    assert len(server.parcel_for(7).arrays) == 2


@pytest.mark.parametrize("entries", [1, 40, SIZE])
def test_memory_is_bounded_by_a_snapshot(entries):
    server = Server(Adam()).steps(200, entries)
    versions = server.versions
    payloads = [payload for payload, _ in versions._recent]
    whole = sum(a.nbytes for name, a in server.replica.arrays.items() if name != VERSION)
    assert sum(map(len, payloads)) == versions._recent_bytes <= max(whole, len(payloads[-1]))
    assert payloads == server.payloads[-len(payloads) :]
    assert not versions._cache


def test_where_nodes_keep_nothing_every_message_carries_the_model_alone():
    server = Server(Adam(), follow=False).steps(3)
    server.versions.confirm(7, 3)
    parcel = server.parcel_for(7)
    assert set(parcel.arrays) == {MODEL}
    assert parcel.config == {}
    assert parcel.bytes == len(parcel.arrays[MODEL].data)
    np.testing.assert_array_equal(decode(parcel.arrays[MODEL].data, LAYOUT)[0], server.models[3])
    assert server.parcel_for(8) is parcel
    assert not versions_kept(server)
    server.step()
    np.testing.assert_array_equal(
        decode(server.parcel_for(7).arrays[MODEL].data, LAYOUT)[0], server.models[4]
    )


def versions_kept(server):
    return len(server.versions._recent) + len(server.versions._has)
