"""A node that applies a received model update has the server's newest model.

The server knows the version of a node's model only from the node's confirmations.
"""

import gc
import weakref

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.compression.decoder import decode, decode_update
from edgewire.compression.flower.node.state import checksum
from edgewire.compression.flower.records import STYPE
from edgewire.compression.flower.replica import MODEL, VERSION, Replica
from edgewire.compression.flower.server.delta_sync import UNHEARD, ModelUpdate
from edgewire.compression.flower.server.version_tracker import VersionTracker
from edgewire.compression.layout import Layout
from edgewire.task.optimizers import SGD, Adam, Momentum
from tests.compression.flower.stepping import SteppingServer, rate
from tests.same import expect_same

LAYOUT = Layout(("weight", "bias", "running_mean"), ((20, 20), (4,), (6,)), ("float32",) * 3)
SIZE, TRAINED = 410, 404
RULES = [SGD(), Momentum(0.5, lazy=True), Adam()]


class Server(SteppingServer):
    def __init__(self, rule=RULES[0], follow=True):
        super().__init__(rule, LAYOUT, TRAINED, follow)
        self.versions = VersionTracker(self.steps)

    def known(self, base):
        """Return the steps since version `base`, or if `base` is too old, a snapshot."""
        return self.steps.model_update(base if self.steps.knows(base) else None)


def contents(model_update):
    return {name: array.data for name, array in model_update.arrays.items()}


def is_snapshot(model_update):
    return MODEL in model_update.arrays


def snapshot(server, model_update):
    """Return the replica that a node makes from a snapshot (model and optimiser state)."""
    arrays = {VERSION: np.array([model_update.header["version"]])}
    for name, payload in contents(model_update).items():
        arrays[name] = decode(payload, LAYOUT if name == MODEL else memory_layout(name))[0].copy()
    return Replica(server.rule, TRAINED, arrays)


def memory_layout(name):
    return Layout((name,), ((TRAINED,),), ("float32",))


def whole_bytes(server):
    return sum(a.nbytes for name, a in server.replica.arrays.items() if name != VERSION)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_an_unknown_node_gets_a_snapshot(rule):
    server = Server(rule).go(4)
    model_update = server.steps.model_update(None)
    assert set(model_update.arrays) == {MODEL, *rule.names}
    assert model_update.header == {"version": 4}
    own = snapshot(server, model_update)
    expect_same(own.arrays, server.replica.arrays)
    assert server.steps.checksum() == checksum(own.model)


@pytest.mark.parametrize("missing", range(5))
def test_a_node_gets_exactly_what_it_lacks_in_order(missing):
    server = Server().go(6 - missing)
    base = server.replica.version
    server.go(missing, entries=1)
    assert server.steps.knows(base)
    model_update = server.steps.model_update(base)
    assert list(contents(model_update)) == [str(n) for n in range(base + 1, 7)]
    assert list(contents(model_update).values()) == server.payloads[base + 1 :]
    rates = [rate(n) for n in range(base + 1, 7)]
    assert model_update.header == {"base": base, "rates": rates, "version": 6}
    assert all(array.stype == STYPE for array in model_update.arrays.values())


@settings(deadline=None, max_examples=60)
@given(
    rule=st.sampled_from(RULES), events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)))
)
def test_a_node_that_missed_messages_has_the_newest_model_after_the_next(rule, events):
    """In each round one of three nodes is asked; the reply arrives, is lost, or is an error."""
    server, nodes = Server(rule), {}
    versions = server.versions
    for node, fate in events:
        model_update = server.steps.model_update(versions.base_of(node))
        versions.send(node, model_update)
        if is_snapshot(model_update):
            nodes[node] = snapshot(server, model_update)
        else:
            base, rates = model_update.header["base"], model_update.header["rates"]
            own = nodes[node]
            for version in range(own.version + 1, base + len(rates) + 1):
                update = decode_update(contents(model_update)[str(version)], LAYOUT)
                own.apply(update.indices, update.values, rates[version - base - 1])
        expect_same(nodes[node].arrays, server.replica.arrays)
        if fate == 0:
            versions.invalidate(node)
        elif fate > 1:  # fate 1: the reply is lost, so the server does not know the node's version
            versions.confirm(node, nodes[node].version)
        server.go(fate // 2, entries=4 * fate**2)


def test_a_node_that_was_away_for_long_gets_a_snapshot():
    server = Server().go()
    small = 0
    while not is_snapshot(model_update := server.known(1)):
        small = sum(map(len, contents(model_update).values()))
        server.go(entries=1)
        assert server.replica.version < 100
    assert 0 < small <= whole_bytes(server)
    assert server.replica.version > 2
    # a node with a recent version still gets steps
    assert not is_snapshot(server.known(server.replica.version - 1))


def test_updates_larger_than_a_snapshot_are_not_sent():
    server = Server().go(entries=SIZE)  # with indices and values: about twice the model's size
    assert len(server.payloads[1]) > 4 * SIZE
    assert server.steps.knows(0)
    model_update = server.steps.model_update(0)
    assert is_snapshot(model_update)
    assert model_update.header == {"version": 1}
    assert model_update is server.steps.model_update(None)


@pytest.mark.parametrize("entries", [1, 40, SIZE])
def test_memory_is_bounded_by_a_snapshot(entries):
    server = Server(Adam()).go(200, entries)
    payloads = [payload for payload, _ in server.steps.recent]
    whole = whole_bytes(server)
    assert sum(map(len, payloads)) <= max(whole, len(payloads[-1]))
    assert payloads == server.payloads[-len(payloads) :]
    assert [r for _, r in server.steps.recent] == [rate(n) for n in range(1, 201)][-len(payloads) :]
    dropped = server.payloads[-len(payloads) - 1]  # one payload more would exceed the bound
    assert sum(map(len, payloads)) + len(dropped) > whole


def test_model_updates_of_an_older_model_are_dropped():
    server = Server().go(2)
    arrays = [weakref.ref(server.steps.model_update(base).arrays) for base in (None, 1)]
    assert all(ref() is not None for ref in arrays)
    server.go()
    gc.collect()
    assert [ref() for ref in arrays] == [None, None]


def test_nodes_that_do_not_follow_get_the_whole_model_each_time():
    server = Server(Adam(), follow=False).go(3)
    model_update = server.steps.model_update(server.versions.base_of(7))
    server.versions.send(7, model_update)
    server.versions.confirm(7, 3)  # no message asked node 7 to confirm
    assert server.versions.base_of(7) is None
    assert set(model_update.arrays) == {MODEL}
    assert model_update.header == {}
    np.testing.assert_array_equal(
        decode(model_update.arrays[MODEL].data, LAYOUT)[0], server.replica.model
    )
    assert server.steps.model_update(None) is model_update
    assert not server.steps.recent
    assert not server.versions.held
    server.go()
    np.testing.assert_array_equal(
        decode(server.steps.model_update(None).arrays[MODEL].data, LAYOUT)[0], server.replica.model
    )


class Every:
    """A fake `DeltaSync` that can send the change since any model version from `first` on."""

    def __init__(self, skips, first=0):
        self.skips, self.first = skips, first

    def knows(self, version):
        return version >= self.first

    def model_update(self, base):
        return of(base)


def of(version):
    return ModelUpdate(ArrayRecord(), {} if version is None else {"version": version})


FATES = ["read", "reply lost", "never came", "error", "says another", "says none", "no version"]


@pytest.mark.parametrize("skips", [True, False])
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(FATES))), st.integers(0, 20))
def test_a_base_is_the_version_that_a_node_confirmed_last(skips, events, first):
    """If nodes skip steps that they have, a message starts at the node's version or before it.

    If they do not, it starts at exactly this version, which is unknown until the node replies.
    """
    versions = VersionTracker(way := Every(skips))
    has, confirmed, sent = {}, {}, {}

    def base_of(node):
        return None if (base := versions.base_of(node)) == UNHEARD else base

    for version, (node, fate) in enumerate(events, 1):
        base = base_of(node)
        assert base == confirmed.get(node)
        assert base is None or (base <= has[node] if skips else base == has[node])
        versions.send(node, of(None if fate == "no version" else version))
        if not skips:
            confirmed.pop(node, None)
        if fate != "no version":
            sent[node] = version
        if fate not in ("never came", "no version"):
            has[node] = version
        assert base_of(node) == confirmed.get(node)
        if fate == "error":
            versions.invalidate(node)
            confirmed.pop(node, None)
        if fate in ("read", "error"):  # after the error, this is a reply to a lost message
            versions.confirm(node, version)
            confirmed |= {node: version} if fate == "read" else {}
        if fate in ("says another", "says none"):
            versions.confirm(node, version - 1 if fate == "says another" else None)
        if fate in ("read", "error", "says another", "says none"):
            del sent[node]
        assert versions.held == {*confirmed.values(), *sent.values()}
    way.first = first  # nothing can build on earlier versions
    for node in (1, 2, 3, 4):
        base = confirmed.get(node)
        assert base_of(node) == (None if base is None or base < first else base)


def test_an_integer_rate_is_a_float_in_messages():
    server = Server().go()
    server.steps.add(server.payloads[-1], 1)
    assert [type(rate) for _, rate in server.steps.recent] == [float, float]
