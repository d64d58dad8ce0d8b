"""The server knows the version of a node's model only from the node's confirmations."""

import pytest
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from compression.flower.server.session import ModelUpdate, VersionTracker


class Every:
    """A fake `DeltaSync` that can send the change since any model version from `first` on."""

    def __init__(self, skips, first=0):
        self.skips, self.first = skips, first

    def knows(self, version):
        return version >= self.first

    def model_update(self, base):
        return of(base)


def of(version):
    return ModelUpdate(ArrayRecord(), {} if version is None else {"version": version}, 0)


both_ways = pytest.mark.parametrize("skips", [True, False])


@both_ways
def test_a_nodes_version_is_the_one_it_confirmed(skips):
    versions = VersionTracker(Every(skips))
    assert versions.base_of(7) is None
    versions.send(7, of(3))
    assert versions.base_of(7) is None
    versions.confirm(7, 3)
    assert versions.base_of(7) == 3
    assert versions.base_of(8) is None


@both_ways
@pytest.mark.parametrize("says", [None, 2, 4])
def test_a_node_cannot_confirm_a_version_that_it_was_not_sent(skips, says):
    versions = VersionTracker(Every(skips))
    versions.confirm(7, 3)
    assert versions.base_of(7) is None
    versions.send(7, of(3))
    versions.confirm(7, says)
    assert versions.base_of(7) is None


@pytest.mark.parametrize(("skips", "base"), [(True, 3), (False, None)])
def test_before_a_reply_a_node_that_skips_keeps_its_version(skips, base):
    versions = VersionTracker(Every(skips))
    versions.send(7, of(3))
    versions.confirm(7, 3)
    versions.send(7, of(4))
    assert versions.base_of(7) == base
    assert versions.held == {3, 4} - ({3} if base is None else set())
    versions.confirm(7, 4)
    assert versions.base_of(7) == 4
    assert versions.held == {4}


@both_ways
def test_after_an_error_a_node_has_no_version_until_it_confirms_one(skips):
    versions = VersionTracker(Every(skips))
    for node in (7, 8):
        versions.send(node, of(2))
        versions.confirm(node, 2)
    versions.invalidate(7)
    versions.invalidate(9)  # node 9 is unknown
    assert [versions.base_of(node) for node in (7, 8, 9)] == [None, 2, None]
    versions.send(7, of(3))
    versions.confirm(7, 3)
    assert versions.base_of(7) == 3


@both_ways
def test_a_reply_to_a_lost_message_confirms_nothing(skips):
    versions = VersionTracker(Every(skips))
    versions.send(7, of(2))
    versions.invalidate(7)
    versions.confirm(7, 2)
    assert versions.base_of(7) is None
    assert versions.held == set()


@both_ways
def test_a_version_on_which_nothing_can_build_is_no_base(skips):
    versions = VersionTracker(way := Every(skips))
    versions.send(7, of(2))
    versions.confirm(7, 2)
    way.first = 3
    assert versions.base_of(7) is None


@both_ways
def test_without_versions_in_messages_no_node_has_one(skips):
    versions = VersionTracker(Every(skips))
    versions.send(7, of(None))
    versions.confirm(7, 0)
    assert versions.base_of(7) is None
    assert versions.held == set()


FATES = ["read", "reply lost", "never came", "error"]
EVENTS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(FATES)))


@given(EVENTS)
def test_a_node_that_skips_is_never_behind_its_base(events):
    """If nodes skip steps that they have, a message starts at the node's version or before it."""
    versions, has = VersionTracker(Every(skips=True)), {}
    for version, (node, fate) in enumerate(events, 1):
        base = versions.base_of(node)
        assert base is None or base <= has[node]
        versions.send(node, of(version))
        has[node] = has.get(node, 0) if fate == "never came" else version
        if fate == "read":
            versions.confirm(node, version)
        elif fate == "error":
            versions.invalidate(node)


@given(EVENTS)
def test_a_node_that_does_not_skip_has_exactly_the_base(events):
    versions, has = VersionTracker(Every(skips=False)), {}
    for version, (node, fate) in enumerate(events, 1):
        base = versions.base_of(node)
        assert base is None or base == has[node]
        versions.send(node, of(version))
        has[node] = has.get(node, 0) if fate == "never came" else version
        assert version in versions.held
        if fate == "read":
            versions.confirm(node, version)
        elif fate == "error":
            versions.invalidate(node)
