"""Trees of objects that nodes announce: the SuperLink makes no larger trees from them."""

from hashlib import sha256

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from hypothesis import given
from hypothesis import strategies as st

from deploy.server.message_store import expect_sound
from protocol.bundle import MOST_PARTS

NAMES = [sha256(bytes([number])).hexdigest() for number in range(8)]
TREES = st.recursive(
    st.builds(ObjectTree, object_id=st.sampled_from(NAMES)),
    lambda below: st.builds(
        ObjectTree, object_id=st.sampled_from(NAMES), children=st.lists(below, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(TREES, min_size=1, max_size=4))
def test_the_store_returns_the_trees_that_it_takes(trees):
    store, taken = InMemoryObjectStore(), []
    for tree in trees:
        try:
            expect_sound(tree, tree.object_id, store)
        except ValueError:
            continue
        store.preregister(1, tree)
        taken.append(tree)
    assert [store.get_object_tree(each.object_id) for each in taken] == taken


def wide(count):
    below = [ObjectTree(object_id=sha256(b"%d" % each).hexdigest()) for each in range(count - 1)]
    return ObjectTree(object_id=NAMES[0], children=below)


def test_a_message_has_a_limited_number_of_objects():
    expect_sound(wide(MOST_PARTS), NAMES[0], InMemoryObjectStore())
    with pytest.raises(ValueError, match="at most 65536 objects"):
        expect_sound(wide(MOST_PARTS + 1), NAMES[0], InMemoryObjectStore())


@pytest.mark.parametrize("tree", [wide(2), ObjectTree(object_id="no name")])
def test_a_tree_is_that_of_its_message(tree):
    with pytest.raises(ValueError, match=r"tree of objects|SHA-256"):
        expect_sound(tree, NAMES[1], InMemoryObjectStore())
