"""A reply with missing objects delays no other reply, and waits for a limited time."""

from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import Metadata, ObjectTree

from edgewire.deploy.server import incomplete_replies
from edgewire.deploy.server.incomplete_replies import EXPIRES, MOST_LOOKED, IncompleteReplies

RUN = 7


class State:
    """A SuperLink's state with announced replies of these names, of one object each.

    `there`: the contents that have arrived; `asked`: the names that were looked for.
    """

    def __init__(self, *names):
        self.there, self.asked, self.object_store = {}, [], self
        self.trees = {
            each: ObjectTree(object_id=each, children=[ObjectTree(object_id=f"in {each}")])
            for each in names
        }
        self.message_ins_id_to_message_res_id = {f"to {each}": each for each in names}
        sent = SimpleNamespace(metadata=Metadata(run_id=RUN, src_node_id=5))
        self.message_res_store = dict.fromkeys(names, sent)

    def get(self, name):
        self.asked.append(name)
        return self.there.get(name, b"")

    def get_object_tree(self, name):
        return self.trees[name]

    def __contains__(self, name):
        return name in self.trees

    def ready(self, arriving, *asked, sends=False):
        """Hand out the replies that are not late, as a SuperLink does; return their names."""
        late = arriving.late(RUN, asked, self, lambda node: sends)
        found = [self.message_ins_id_to_message_res_id.pop(each) for each in {*asked} - late]
        for name in found:
            del self.message_res_store[name]
        return sorted(found)


def test_a_complete_reply_does_not_wait_for_another(clock):
    arriving, state = IncompleteReplies(clock), State("a", "b")
    state.there = {"a": b"1", "in a": b"2", "b": b"3"}
    assert state.ready(arriving, "to a", "to b") == ["a"]
    assert arriving.waits(RUN)
    clock.now += EXPIRES - 1
    assert state.ready(arriving, "to b") == []
    clock.now += 1
    assert state.ready(arriving, "to b", sends=True) == []  # a large object takes time
    state.there["in b"] = b"4"
    assert state.ready(arriving, "to b") == ["b"]
    assert not arriving.waits(RUN)


def test_each_arriving_object_extends_the_time(clock):
    arriving, state = IncompleteReplies(clock), State("a")
    assert state.ready(arriving, "to a") == []
    clock.now += EXPIRES - 1
    state.there["in a"] = b"1"
    assert state.ready(arriving, "to a") == []
    clock.now += EXPIRES - 1
    assert state.ready(arriving, "to a") == []
    clock.now += 1
    assert state.ready(arriving, "to a") == ["a"]
    assert not arriving.waits(RUN)


def test_a_missing_object_is_not_awaited_for_ever(clock):
    arriving, state = IncompleteReplies(clock), State("a")
    state.there["a"] = None  # the SuperLink does not know it
    assert state.ready(arriving, "to a", sends=True) == ["a"]


def test_a_reply_is_awaited_for_its_own_run_and_message_only(clock):
    arriving, state = IncompleteReplies(clock), State("a")
    assert arriving.late(RUN, ["to b"], state, lambda node: False) == set()
    assert arriving.late(RUN + 1, ["to a"], state, lambda node: False) == set()
    assert not arriving.waits(RUN + 1)
    assert arriving.late(RUN, ["to a"], state, lambda node: False) == {"to a"}


def test_nothing_remains_of_a_reply_that_the_superlink_has_removed(clock):
    arriving, state = IncompleteReplies(clock), State("a", "b")
    assert state.ready(arriving, "to a", "to b") == []
    state.message_res_store.clear()
    arriving.late(RUN + 1, [], state, lambda node: False)
    assert not arriving.waits(RUN)


@pytest.mark.parametrize(("arrived", "most"), [(False, 16), (True, MOST_LOOKED)])
def test_a_look_asks_for_few_objects_and_misses_none(clock, arrived, most):
    """A look at a reply of many objects takes a limited time; later looks find all of them."""
    arriving, state = IncompleteReplies(clock), State("b", "a")
    state.there = {"a": b"1", "in a": b"2"}
    names = [f"{number:05}" for number in range(2000)]
    state.trees["b"].children.extend(ObjectTree(object_id=n) for n in names)
    if arrived:
        state.there |= dict.fromkeys(["b", "in b", *names], b"3")
    assert state.ready(arriving, "to a", "to b") == ["a"]
    looked = {*state.asked}
    assert len(state.asked) <= most + 2
    found = []
    for _ in range(2002 // most):
        state.asked.clear()
        found = state.ready(arriving, "to b")
        assert len(state.asked) <= most
        looked.update(state.asked)
    assert looked == {"a", "in a", "b", "in b", *names}
    state.there |= dict.fromkeys(["b", "in b", *names], b"3")
    while not found:
        found = state.ready(arriving, "to b")
    assert found == ["b"]


def test_a_response_holds_a_few_large_replies(clock, monkeypatch):
    """The ServerApp takes at most 4 GB in a response, so many large replies need several."""
    monkeypatch.setattr(incomplete_replies, "ENOUGH", 25)
    names = [f"{number}" for number in range(7)]
    arriving, state, counts = IncompleteReplies(clock), State(*names), []
    state.there = {name: bytes(5) for each in names for name in (each, f"in {each}")}
    while state.message_res_store:
        asked = list(state.message_ins_id_to_message_res_id)
        counts.append(len(state.ready(arriving, *asked)))
    assert counts == [3, 3, 1]
