"""What each node lacks of the newest model, and what it is sent: by hand it becomes that model."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Layout, decode, decode_update, make_codec
from compression.flower.node.state import checksum
from compression.flower.node_replica import MODEL, VERSION, Replica
from compression.flower.records import STYPE
from compression.flower.server.model_sync import StepLogSync
from compression.flower.server.session import VersionTracker
from task.optimizers import SGD, Adam, Momentum

LAYOUT = Layout(("weight", "bias", "running_mean"), ((20, 20), (4,), (6,)), ("float32",) * 3)
SIZE, TRAINED = 410, 404
CODEC = make_codec(coder="raw")
RULES = [SGD(), Momentum(0.5, lazy=True), Adam()]


class Server:
    """A replica that goes on by random updates, and the steps of it."""

    def __init__(self, rule=RULES[0], follow=True):
        self.rule = rule
        self.replica = Replica.start(rule, TRAINED, np.linspace(-1, 1, SIZE, dtype=np.float32))
        self.steps = StepLogSync(self.replica, LAYOUT, follow=follow)
        self.ledger = VersionTracker(self.steps)
        self.payloads, self.models = [b""], [self.replica.model.copy()]  # by version

    def go(self, count=1, entries=3):
        for _ in range(count):
            number = self.replica.version + 1
            draw = np.random.default_rng(number)
            indices = np.sort(draw.choice(SIZE, entries, replace=False)).astype(np.uint32)
            values = draw.normal(size=entries).astype(np.float32)
            self.replica.apply(indices, values, rate(number))
            self.payloads.append(CODEC.encode_sparse(indices, values, LAYOUT))
            self.steps.add(self.payloads[-1], rate(number))
            self.models.append(self.replica.model.copy())
        return self

    def known(self, base):
        """Return what nodes get of which `base` is known; None where that is nothing."""
        return self.steps.parcel(base if self.steps.knows(base) else None)


def rate(number):
    return 0.5 / number


def contents(parcel):
    return {name: array.data for name, array in parcel.arrays.items()}


def is_snapshot(parcel):
    return MODEL in parcel.arrays


def snapshot(server, parcel):
    """Return the replica that a snapshot holds."""
    arrays = {VERSION: np.array([parcel.note["version"]])}
    for name, payload in contents(parcel).items():
        arrays[name] = decode(payload, LAYOUT if name == MODEL else memory_layout(name))[0].copy()
    return Replica(server.rule, TRAINED, arrays)


def memory_layout(name):
    return Layout((name,), ((TRAINED,),), ("float32",))


def whole_bytes(server):
    return sum(a.nbytes for name, a in server.replica.arrays.items() if name != VERSION)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_node_that_is_not_known_gets_all_there_is(rule):
    server = Server(rule).go(4)
    parcel = server.steps.parcel(None)
    assert set(parcel.arrays) == {MODEL, *rule.names}
    assert parcel.note == {"version": 4}
    own = snapshot(server, parcel)
    for name, array in server.replica.arrays.items():
        np.testing.assert_array_equal(own.arrays[name], array)
        assert own.arrays[name].dtype == array.dtype
    assert server.steps.checksum() == checksum(own.model)


@pytest.mark.parametrize("missing", range(5))
def test_a_node_gets_exactly_what_it_lacks_in_order(missing):
    server = Server().go(6 - missing)
    base = server.replica.version
    server.go(missing, entries=1)
    assert server.steps.knows(base)
    parcel = server.steps.parcel(base)
    assert list(contents(parcel)) == [str(n) for n in range(base + 1, 7)]
    assert list(contents(parcel).values()) == server.payloads[base + 1 :]
    rates = [rate(n) for n in range(base + 1, 7)]
    assert parcel.note == {"base": base, "rates": rates, "version": 6}
    assert parcel.size == sum(map(len, server.payloads[base + 1 :]))
    assert all(array.stype == STYPE for array in parcel.arrays.values())


@settings(deadline=None, max_examples=60)
@given(
    rule=st.sampled_from(RULES), events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)))
)
def test_whatever_is_missed_a_node_that_applies_its_parcel_is_up_to_date(rule, events):
    """Three nodes: one is asked in each round, and its reply arrives, is lost or is an error."""
    server, nodes = Server(rule), {}
    ledger = server.ledger
    for node, fate in events:
        parcel = server.steps.parcel(ledger.base_of(node))
        ledger.send(node, parcel)
        if is_snapshot(parcel):
            nodes[node] = snapshot(server, parcel)
        else:
            base, rates = parcel.note["base"], parcel.note["rates"]
            own = nodes[node]
            for version in range(own.version + 1, base + len(rates) + 1):
                update = decode_update(contents(parcel)[str(version)], LAYOUT)
                own.apply(update.indices, update.values, rates[version - base - 1])
        for name, array in server.replica.arrays.items():
            np.testing.assert_array_equal(nodes[node].arrays[name], array)
        if fate == 0:
            ledger.lose(node)
        elif fate > 1:  # at 1 the reply is lost: the server does not know
            ledger.confirm(node, nodes[node].version)
        server.go(fate // 2, entries=4 * fate**2)


def test_a_node_that_was_away_for_long_gets_a_snapshot():
    server = Server().go()
    small = 0
    while not is_snapshot(parcel := server.known(1)):
        small = parcel.size
        server.go(entries=1)
        assert server.replica.version < 100
    assert 0 < small <= whole_bytes(server)
    assert server.replica.version > 2
    # who lacks less still gets that
    assert not is_snapshot(server.known(server.replica.version - 1))


def test_updates_larger_than_a_snapshot_are_not_sent():
    server = Server().go(entries=SIZE)  # indices and values: about twice the model
    assert len(server.payloads[1]) > 4 * SIZE
    assert server.steps.knows(0)
    parcel = server.steps.parcel(0)
    assert is_snapshot(parcel)
    assert parcel.note == {"version": 1}
    assert parcel is server.steps.parcel(None)


def test_nodes_alike_get_the_same_object_until_the_model_changes():
    server = Server().go(3)
    assert server.steps.parcel(2) is server.steps.parcel(2)
    assert server.steps.parcel(None) is server.steps.parcel(None)
    before = server.steps.parcel(2), server.steps.parcel(None)
    server.go(entries=1)
    assert server.steps.parcel(2) is not before[0]
    assert server.steps.parcel(None) is not before[1]
    assert len(server.steps.parcel(2).arrays) == 2


@pytest.mark.parametrize("entries", [1, 40, SIZE])
def test_memory_is_bounded_by_a_snapshot(entries):
    server = Server(Adam()).go(200, entries)
    payloads = [payload for payload, _ in server.steps.recent]
    whole = whole_bytes(server)
    assert sum(map(len, payloads)) <= max(whole, len(payloads[-1]))
    assert payloads == server.payloads[-len(payloads) :]
    assert [r for _, r in server.steps.recent] == [rate(n) for n in range(1, 201)][-len(payloads) :]
    dropped = server.payloads[-len(payloads) - 1]  # one more would have been too many
    assert sum(map(len, payloads)) + len(dropped) > whole


def test_parcels_of_an_older_model_are_not_kept():
    server = Server().go(2)
    arrays = [weakref.ref(server.steps.parcel(base).arrays) for base in (None, 1)]
    assert all(ref() is not None for ref in arrays)
    server.go()
    gc.collect()
    assert [ref() for ref in arrays] == [None, None]


def test_where_nodes_keep_nothing_every_message_carries_the_model_alone():
    server = Server(Adam(), follow=False).go(3)
    parcel = server.steps.parcel(server.ledger.base_of(7))
    server.ledger.send(7, parcel)
    server.ledger.confirm(7, 3)  # nobody has asked it to
    assert server.ledger.base_of(7) is None
    assert set(parcel.arrays) == {MODEL}
    assert parcel.note == {}
    assert parcel.size == len(parcel.arrays[MODEL].data)
    np.testing.assert_array_equal(decode(parcel.arrays[MODEL].data, LAYOUT)[0], server.models[3])
    assert server.steps.parcel(None) is parcel
    assert not server.steps.recent
    assert not server.ledger.held
    server.go()
    np.testing.assert_array_equal(
        decode(server.steps.parcel(None).arrays[MODEL].data, LAYOUT)[0], server.models[4]
    )
