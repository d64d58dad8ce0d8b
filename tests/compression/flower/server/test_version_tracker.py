"""The server knows the version of a node's model only from the node's confirmations."""

import pytest
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower.server.version_tracker import ModelUpdate, VersionTracker


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


FATES = ["read", "reply lost", "never came", "error", "says another", "says none", "no version"]


@pytest.mark.parametrize("skips", [True, False])
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(FATES))), st.integers(0, 20))
def test_a_base_is_the_version_that_a_node_confirmed_last(skips, events, first):
    """If nodes skip steps that they have, a message starts at the node's version or before it.

    If they do not, it starts at exactly this version, which is unknown until the node replies.
    """
    versions = VersionTracker(way := Every(skips))
    has, confirmed, sent = {}, {}, {}
    for version, (node, fate) in enumerate(events, 1):
        base = versions.base_of(node)
        assert base == confirmed.get(node)
        assert base is None or (base <= has[node] if skips else base == has[node])
        versions.send(node, of(None if fate == "no version" else version))
        if not skips:
            confirmed.pop(node, None)
        if fate != "no version":
            sent[node] = version
        if fate not in ("never came", "no version"):
            has[node] = version
        assert versions.base_of(node) == confirmed.get(node)
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
        assert versions.base_of(node) == (None if base is None or base < first else base)
