"""Trees of objects that nodes announce: they change no other tree of the SuperLink's store."""

from hashlib import sha256

import pytest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.server.message_store import expect_sound, flat_tree
from edgewire.protocol.bundle import MOST_PARTS

NAMES = [sha256(bytes([number])).hexdigest() for number in range(8)]
TREES = st.recursive(
    st.builds(ObjectTree, object_id=st.sampled_from(NAMES)),
    lambda below: st.builds(
        ObjectTree, object_id=st.sampled_from(NAMES), children=st.lists(below, max_size=3)
    ),
    max_leaves=12,
)


SHARED = st.lists(TREES, max_size=3)


def replied(below, number=0):
    """Return a reply, and a tree of this reply with these children."""
    reply = Message(metadata=Metadata(run_id=1, src_node_id=number))
    body = reply.SerializeToString(deterministic=True)
    first = "".join(each.object_id for each in below[:1])
    name = sha256(f"Message {first} {len(body)}\0".encode() + body).hexdigest()
    reply.metadata.message_id = name
    return reply, ObjectTree(object_id=name, children=below)


def names(tree):
    return {each.object_id for each in iterate_object_tree(tree)}


@given(st.lists(SHARED, max_size=4), SHARED)
def test_earlier_trees_change_no_later_tree(announced, below):
    """Nodes announce any children of any names, and then others send messages with these names."""
    store = InMemoryObjectStore()
    for number, each in enumerate([*announced, below]):
        reply, tree = replied(each, number)
        expect_sound(reply, tree, store)
        store.preregister(1, flat_tree(tree))
        assert names(store.get_object_tree(tree.object_id)) == names(tree)
    message = ObjectTree(object_id=sha256(b"message").hexdigest(), children=below)
    store.preregister(1, flat_tree(message))
    assert store.get_object_tree(message.object_id) == flat_tree(message)
    for number, each in enumerate([*announced, below]):  # the message still holds its objects
        store.delete(replied(each, number)[1].object_id)
    assert names(store.get_object_tree(message.object_id)) == names(message)
    store.delete(message.object_id)
    assert len(store) == 0


@given(TREES)
def test_an_object_is_announced_as_no_message(tree):
    reply = Message(metadata=Metadata(message_id=tree.object_id))
    with pytest.raises(ValueError, match="tree of objects"):
        expect_sound(reply, tree, InMemoryObjectStore())


def test_a_reply_contains_no_other_message_and_keeps_its_objects():
    store = InMemoryObjectStore()
    leaves = [ObjectTree(object_id=each) for each in NAMES[:2]]
    reply, tree = replied(leaves)
    store.preregister(1, flat_tree(tree))
    expect_sound(reply, tree, store)  # a node may repeat its reply
    for again in replied([tree], 2), replied(leaves[:1]):
        with pytest.raises(ValueError, match="other parts"):
            expect_sound(*again, store)


def wide(count):
    return [ObjectTree(object_id=sha256(b"%d" % each).hexdigest()) for each in range(count - 1)]


def test_a_message_has_a_limited_number_of_objects():
    expect_sound(*replied(wide(MOST_PARTS)), InMemoryObjectStore())
    with pytest.raises(ValueError, match="at most 65536 objects"):
        expect_sound(*replied(wide(MOST_PARTS + 1)), InMemoryObjectStore())


def test_an_object_is_named_by_a_sha_256():
    with pytest.raises(ValueError, match="SHA-256"):
        expect_sound(*replied([ObjectTree(object_id="no name")]), InMemoryObjectStore())
