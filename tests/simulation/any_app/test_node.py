"""A node of any Flower app replies as its ClientApp does, and shares no data with other nodes."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edgewire.simulation.any_app.app import read_app
from edgewire.simulation.any_app.node import GuestNode, seeded
from edgewire.simulation.workers.node_host import NodeHost, NodeHostSpec
from tests.simulation.any_app.apps import write

CLIENT = """
import random
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

kept = ConfigRecord({"x": 0})
app = ClientApp()

@app.query("draw")
def draw(message, context):
    return Message(RecordDict({"c": ConfigRecord({"x": random.random()})}), reply_to=message)

@app.query("spoil")
def spoil(message, context):
    seen = message.content["c"]["x"]
    message.content["c"]["x"] = 99
    return Message(RecordDict({"c": ConfigRecord({"x": seen})}), reply_to=message)

@app.query("keep")
def keep(message, context):
    context.state["c"] = context.state.get("c", ConfigRecord({"x": 0}))
    context.state["c"]["x"] += 1
    return Message(RecordDict({"c": context.state["c"]}), reply_to=message)

@app.query("config")
def config(message, context):
    context.run_config["rate"] = 7
    return Message(RecordDict(), reply_to=message)

@app.query("nothing")
def nothing(message, context):
    return None

@app.query("fail")
def fail(message, context):
    raise RuntimeError("no power")

@app.query("rate")
def rate(message, context):
    return Message(RecordDict({"c": ConfigRecord(dict(context.run_config))}), reply_to=message)
"""


@pytest.fixture
def host(tmp_path, at_home, monkeypatch):
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)  # Flower sends nothing without these ids
    files = {"guest_node_client.py": CLIENT}
    client = "guest_node_client:app"
    app = read_app(write(tmp_path / "toy", files, client=client, config="rate = 1"), [])

    def make(seed=0):
        return NodeHost(NodeHostSpec(GuestNode(app, seed), 3, 1, app.run_config))

    return make


def ask(host, action, node=1, number=1, content=None):
    """Return a node's reply to its message number `number`."""
    message = Message(content or RecordDict(), node, f"query.{action}")
    message.metadata.__dict__["_message_id"] = f"{node}-{number}"
    return host.answer(message)[0]


def x(reply):
    return reply.content["c"]["x"]


def test_draws_depend_on_seed_node_and_number_alone(host):
    first, second = host(), host()
    drawn = [x(ask(first, "draw", node, number)) for node in (1, 2) for number in (1, 2)]
    assert len(set(drawn)) == 4
    again = [x(ask(second, "draw", node, number)) for number in (2, 1) for node in (2, 1)]
    assert sorted(again) == sorted(drawn)
    assert again[0] == drawn[3]
    assert x(ask(host(seed=1), "draw")) not in drawn


def test_each_node_gets_its_own_copy_of_a_shared_content(host):
    content, here = RecordDict({"c": ConfigRecord({"x": 1})}), host()
    assert [x(ask(here, "spoil", node, content=content)) for node in (1, 2, 3)] == [1, 1, 1]
    assert content["c"]["x"] == 1


def test_a_reply_does_not_share_data_with_the_nodes_state(host):
    here = host()
    reply = ask(here, "keep")
    reply.content["c"]["x"] = 50
    assert x(ask(here, "keep", number=2)) == 2
    assert x(reply) == 50
    assert x(ask(here, "keep", node=2)) == 1


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("config", "`run_config` of a Context cannot be modified"),
        ("nothing", "the ClientApp returned NoneType, not a Message"),
        ("fail", "RuntimeError: no power"),
        ("other", "No query function registered with name 'other'"),
    ],
)
def test_a_failing_node_gives_an_error_and_a_full_log(host, capfd, caplog, action, reason):
    here = host()
    reply = ask(here, action)
    assert reason in reply.error.reason
    assert "Traceback" in caplog.text
    assert reason.split(": ")[-1] in caplog.text
    assert ask(here, "rate", number=2).content["c"]["rate"] == 1
    assert ask(here, "rate", node=2).content["c"]["rate"] == 1


def draws():
    return random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002


def test_equal_seeds_draw_equal_numbers_and_others_differ():
    found = []
    for entropy in ((0, 1), (0, 1), (1, 1), (0, 2), (0,)):
        with seeded(*entropy):
            found.append(draws())
    assert found[0] == found[1]
    for one, other in pairwise(found[1:]):
        assert all(a != b for a, b in zip(one, other, strict=True))


def test_later_draws_are_unchanged():
    with seeded(3):
        draws()
        expected = draws()
    with seeded(3):
        draws()
        with seeded(4):
            draws()
        assert draws() == expected


@pytest.mark.parametrize("used", [True, False])
def test_gpus_that_torch_uses_have_their_states_back(used, monkeypatch):
    set_again = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["first", "second"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", set_again.extend)
    with seeded(3):
        assert not set_again
    assert set_again == ["first", "second"] * used
