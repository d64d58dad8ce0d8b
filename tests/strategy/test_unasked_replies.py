"""A second reply, and a reply to a message that was never sent, are refused and change nothing."""

import copy

import pytest
from flwr.app import Error, Message, RecordDict

from edgewire.compression.flower.message_size import size_of
from edgewire.simulation.grid import LocalGrid
from edgewire.strategy.ordered_grid import OrderedGrid
from tests.compression.flower.fleet import Fleet
from tests.local_runs import local_run
from tests.runs import model_bytes, result_of

KINDS = {
    "a round of gradients": ["algorithm=esgd", "rounds=6"],
    "a quorum": ["algorithm=esgd", "rounds=6", "strategy.quorum=0.7"],
    "pushes": ["algorithm=adacomp", "strategy.pushes=24", "nodes=4", "network=ideal"],
    "segments": ["algorithm=synthetic_gradients", "rounds=6"],
}


def unknown(reply):
    """Return a copy of a reply that answers no message."""
    other = copy.deepcopy(reply)
    vars(other.metadata)["_reply_to_message_id"] = "never sent"
    return other


def failed(reply):
    """Return an error that answers no message."""
    return Message(Error(3, "x"), reply_to=Message(RecordDict(), 1, "train"))


@pytest.mark.few(1)
@pytest.mark.parametrize("another", [copy.deepcopy, unknown, failed])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_and_counts_them(kind, another, tmp_path, monkeypatch):
    words = [*KINDS[kind], "dataset=digits", "eval_every=100"]
    local_run(tmp_path / "usual", *words)
    pull, more, size = LocalGrid.pull_before, 0, 0

    def pulled(self, ids, deadline):
        nonlocal more, size
        found = []
        for reply in pull(self, ids, deadline):
            found.append(reply)
            if reply.metadata.src_node_id == 1:
                found.append(another(reply))
                more += 1
                size += 0 if found[-1].has_error() else size_of(found[-1].content)
        return found

    monkeypatch.setattr(LocalGrid, "pull_before", pulled)
    local_run(tmp_path / "more", *words)
    assert more > 0
    assert model_bytes(tmp_path / "more") == model_bytes(tmp_path / "usual")
    usual, found = result_of(tmp_path / "usual"), result_of(tmp_path / "more")
    assert found["failures"] == usual["failures"] + more
    keys = ("uplink_bytes", "uplink_other_bytes", "uplink_header_bytes")
    assert sum(found[key] - usual[key] for key in keys) == size


@pytest.mark.usefixtures("identity")
def test_a_grid_waits_on_until_an_asked_reply_arrives():
    class Twice(Fleet):
        """Answers first with an old reply only, then with the asked one."""

        calls = 0

        def pull_messages(self, ids):
            self.calls += 1
            return [reply] if self.calls == 1 else [reply, asked]

    first = Message(RecordDict(), 1, "train")
    vars(first.metadata)["_message_id"] = "1"
    second = Message(RecordDict(), 1, "train")
    vars(second.metadata)["_message_id"] = "2"
    reply, asked = (Message(RecordDict(), reply_to=message) for message in (first, second))
    grid, refused = OrderedGrid(Twice([[1]])), []
    grid.refuse = refused.append
    assert grid.pull_before(["2"], grid.now + 60) == [asked]
    assert refused == [reply, reply]
