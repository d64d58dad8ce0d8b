"""A reply with missing objects delays no other reply, and waits for a limited time."""

import pytest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesResponse

from edgewire.deploy.server import incomplete_replies
from edgewire.deploy.server.incomplete_replies import (
    EXPIRES,
    FORGOTTEN,
    MOST_LOOKED,
    IncompleteReplies,
)

RUN = 7


def announced(*names):
    """Return the server's response that announces replies with these names, of one object each."""
    trees = [ObjectTree(object_id=each, children=[ObjectTree(object_id=f"in {each}")])
             for each in names]  # fmt: skip
    messages = [
        Message(metadata=Metadata(message_id=each, src_node_id=5, reply_to_message_id=f"to {each}"))
        for each in names
    ]
    return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)


def test_a_complete_reply_does_not_wait_for_another(clock):
    arriving, there = IncompleteReplies(clock), {"a": b"1", "in a": b"2", "b": b"3"}
    arriving.add(RUN, announced("a", "b"))
    asked = ["to a", "to b"]

    def ready(sends=False):
        found = arriving.ready(RUN, asked, there.get, lambda node: sends)
        return {each.message.metadata.message_id: each.objects for each in found}

    assert ready() == {"a": {"a": b"1", "in a": b"2"}}
    assert arriving.waits(RUN)
    assert arriving.not_yet(RUN, asked) == ["to a"]
    clock.now += EXPIRES - 1
    assert ready() == {}
    clock.now += 1
    assert ready(sends=True) == {}  # a large object takes time
    there["in b"] = b"4"
    assert ready() == {"b": {"b": b"3", "in b": b"4"}}
    assert not arriving.waits(RUN)


def test_each_arriving_object_extends_the_time(clock):
    arriving, there = IncompleteReplies(clock), {}
    arriving.add(RUN, announced("a"))
    clock.now += EXPIRES - 1
    there["in a"] = b"1"
    assert arriving.ready(RUN, ["to a"], there.get, lambda node: False) == []
    clock.now += EXPIRES - 1
    assert arriving.ready(RUN, ["to a"], there.get, lambda node: False) == []
    clock.now += 1
    (found,) = arriving.ready(RUN, ["to a"], there.get, lambda node: False)
    assert found.missing == ["a"]
    assert not arriving.waits(RUN)


def test_a_missing_object_is_not_awaited_for_ever(clock):
    arriving = IncompleteReplies(clock)
    arriving.add(RUN, announced("a"))
    (found,) = arriving.ready(RUN, ["to a"], {}.__getitem__, lambda node: True)
    assert found.objects == {}


def test_a_reply_is_given_to_its_own_run_and_message_only(clock):
    arriving, there = IncompleteReplies(clock), {"a": b"1", "in a": b"2"}
    arriving.add(RUN, announced("a"))
    assert arriving.ready(RUN, ["to b"], there.get, lambda node: False) == []
    assert arriving.ready(RUN + 1, ["to a"], there.get, lambda node: False) == []
    assert len(arriving.ready(RUN, ["to a"], there.get, lambda node: False)) == 1


def test_nothing_remains_of_a_finished_run(clock):
    arriving = IncompleteReplies(clock)
    arriving.add(RUN, announced("a", "b"))
    clock.now += FORGOTTEN + 1
    arriving.add(RUN + 1, announced("c"))
    assert not arriving.waits(RUN)
    assert arriving.waits(RUN + 1)


@pytest.mark.parametrize(("arrived", "most"), [(False, 16), (True, MOST_LOOKED)])
def test_a_look_asks_for_few_objects_and_misses_none(clock, arrived, most):
    """A look at a reply of many objects takes a limited time; later looks find all of them."""
    arriving, there, asked = IncompleteReplies(clock), {"a": b"1", "in a": b"2"}, []
    names = [f"{number:05}" for number in range(2000)]
    response = announced("b", "a")
    response.message_object_trees[0].children.extend(ObjectTree(object_id=n) for n in names)
    arriving.add(RUN, response)
    if arrived:
        there |= dict.fromkeys(["b", "in b", *names], b"3")

    def fetch(name):
        asked.append(name)
        return there.get(name)

    def ready():
        asked.clear()
        found = arriving.ready(RUN, ["to a", "to b"], fetch, lambda node: False)
        return {each.message.metadata.message_id: each.objects for each in found}

    assert ready() == {"a": {"a": b"1", "in a": b"2"}}
    looked = {*asked}
    assert len(asked) <= most + 2
    for _ in range(2002 // most):
        found = ready()
        assert len(asked) <= most
        looked.update(asked)
    assert looked == {"a", "in a", "b", "in b", *names}
    there |= dict.fromkeys(["b", "in b", *names], b"3")
    while not found:
        found = ready()
    assert found == {"b": dict.fromkeys(["in b", *names, "b"], b"3")}


def test_a_response_holds_a_few_large_replies(clock, monkeypatch):
    """The ServerApp takes at most 4 GB in a response, so many large replies need several."""
    monkeypatch.setattr(incomplete_replies, "ENOUGH", 25)
    arriving, names = IncompleteReplies(clock), [f"{number}" for number in range(7)]
    arriving.add(RUN, announced(*names))
    asked, counts = [f"to {each}" for each in names], []
    while arriving.waits(RUN):
        counts.append(len(arriving.ready(RUN, asked, lambda name: bytes(5), lambda node: False)))
    assert counts == [3, 3, 1]
