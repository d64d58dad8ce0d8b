"""A reply with missing objects delays no other reply, and waits for a limited time."""

from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import Message, Metadata

from edgewire.deploy.server import incomplete_replies
from edgewire.deploy.server.incomplete_replies import (
    EXPIRES,
    FORGOTTEN,
    MOST_LOOKED,
    IncompleteReplies,
)

RUN = 7


class Store(dict):
    """The SuperLink's objects: id -> content, or b"" before it has arrived."""


def announced(*names, more=()):
    """Return a SuperLink's state with replies of these names, of one object each.

    `more`: further objects of the first one.
    """
    store = Store()
    store.store = {each: SimpleNamespace(child_object_ids=[f"in {each}"]) for each in names}
    store.store[names[0]].child_object_ids += more
    for name, entry in store.store.items():
        store |= dict.fromkeys([*entry.child_object_ids, name], b"")
    replies = {each: Message(metadata=Metadata(src_node_id=5)) for each in names}
    asked = {f"to {each}": each for each in names}
    return SimpleNamespace(
        object_store=store,
        message_ins_store=dict(asked),
        message_res_store=replies,
        message_ins_id_to_message_res_id=asked,
    )


def taken(state, found):
    """Let the SuperLink hand out replies, as it does for a ServerApp; return their names."""
    names = [state.message_ins_id_to_message_res_id.pop(each) for each in found]
    for message, name in zip(found, names, strict=True):
        del state.message_ins_store[message], state.message_res_store[name]
    return names


def test_a_complete_reply_does_not_wait_for_another(clock):
    arriving, state = IncompleteReplies(clock), announced("a", "b")
    state.object_store |= {"a": b"1", "in a": b"2", "b": b"3"}
    asked = ["to a", "to nobody", "to b"]

    def ready(sends=False):
        return arriving.without(RUN, asked, state, lambda node: sends and node == 5)

    assert ready() == ["to a", "to nobody"]
    assert arriving.waits(RUN)
    assert not arriving.waits(RUN + 1)
    taken(state, ["to a"])
    asked.remove("to a")
    clock.now += EXPIRES - 1
    assert ready() == ["to nobody"]
    clock.now += 1
    assert ready(sends=True) == ["to nobody"]  # a large object takes time
    state.object_store["in b"] = b"4"
    assert ready() == ["to nobody", "to b"]
    assert not arriving.waits(RUN)


def test_each_arriving_object_extends_the_time(clock):
    arriving, state = IncompleteReplies(clock), announced("a")

    def ready():
        return arriving.without(RUN, ["to a"], state, lambda node: False)

    assert ready() == []
    clock.now += EXPIRES - 1
    state.object_store["in a"] = b"1"
    assert ready() == []
    clock.now += EXPIRES - 1
    assert ready() == []
    clock.now += 1
    assert ready() == ["to a"]
    assert not arriving.waits(RUN)


def test_a_missing_object_is_not_awaited_for_ever(clock):
    arriving, state = IncompleteReplies(clock), announced("a")
    del state.object_store["in a"]
    assert arriving.without(RUN, ["to a"], state, lambda node: True) == ["to a"]


def test_a_dropped_reply_is_a_failure(clock):
    """Flower drops a reply if an object of it takes over 180 s: nobody else answers its message."""
    arriving, state, deleted = IncompleteReplies(clock), announced("a", "b"), set()
    state.delete_messages = deleted.update
    asked = ["to a", "to b"]
    assert arriving.without(RUN, asked, state, lambda node: True) == []
    state.message_res_store.pop(state.message_ins_id_to_message_res_id.pop("to a"))
    for each in ("a", "in a"):
        del state.object_store[each]
    assert arriving.without(RUN, asked, state, lambda node: True) == ["to a"]
    assert deleted == {"to a"}  # so Flower reports an error


@pytest.mark.parametrize("how", ["removed", "not asked for"])
def test_nothing_remains_of_a_reply_that_nobody_awaits(how, clock):
    arriving, state = IncompleteReplies(clock), announced("a", "b")
    assert arriving.without(RUN, ["to a"], state, lambda node: False) == []
    assert arriving.waits(RUN)
    if how == "removed":
        taken(state, ["to a"])  # the SuperLink forgets it with the run
    else:
        clock.now += FORGOTTEN
    assert arriving.without(RUN + 1, ["to b"], state, lambda node: False) == []
    assert not arriving.waits(RUN)
    assert arriving.waits(RUN + 1)


@pytest.mark.parametrize(("arrived", "most"), [(False, 16), (True, MOST_LOOKED)])
def test_a_look_asks_for_few_objects_and_misses_none(clock, arrived, most):
    """A look at a reply of many objects takes a limited time; later looks find all of them."""
    names, looks = [f"{number:05}" for number in range(2000)], []
    arriving, state = IncompleteReplies(clock), announced("b", "a", more=names)
    state.object_store |= {"a": b"1", "in a": b"2"}
    whole = dict.fromkeys(["b", "in b", *names], b"3")
    if arrived:
        state.object_store |= whole

    def get(name):
        looks.append(name)
        return state.object_store[name]

    state.object_store.get = get

    def ready():
        looks.clear()
        asked = [*state.message_ins_id_to_message_res_id]
        return taken(state, arriving.without(RUN, asked, state, lambda node: False))

    assert ready() == ["a"]
    looked = {*looks}
    assert len(looks) <= most + 2
    found = []
    for _ in range(2002 // most):
        found = ready()
        assert len(looks) <= most
        looked.update(looks)
    assert looked == {"a", "in a", *whole}
    state.object_store |= whole
    while not found:
        found = ready()
    assert found == ["b"]


def test_a_response_holds_a_few_large_replies(clock, monkeypatch):
    """The ServerApp takes at most 4 GB in a response, so many large replies need several."""
    monkeypatch.setattr(incomplete_replies, "ENOUGH", 25)
    arriving, state = IncompleteReplies(clock), announced(*(f"{number}" for number in range(7)))
    state.object_store |= dict.fromkeys(state.object_store, bytes(5))
    counts = []
    while asked := [*state.message_ins_id_to_message_res_id]:
        counts.append(len(taken(state, arriving.without(RUN, asked, state, lambda node: False))))
    assert counts == [3, 3, 1]
