"""A node is on the disk when the server says that it is registered; many nodes share a write."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from flwr.proto.control_pb2 import RegisterNodeResponse
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy import keys
from edgewire.deploy.server import node_registry
from edgewire.deploy.server.node_registry import CHANGING, Registry
from tests.deploy.served import Server

LOOKS = 40  # passes of the event loop in which all requests are made


@given(
    st.lists(st.integers(0, LOOKS), min_size=1, max_size=30),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.integers(1, 10),
)
def test_a_node_is_registered_if_and_only_if_it_is_stored(moments, full, passes):
    """Requests come at these moments; a save takes some passes of the loop.

    `full`: from which save on the disk is full, and for how many.
    """
    failing = range(full[0], sum(full))
    stored, saves, statuses = [], [], {}
    state = SimpleNamespace(
        lock=nullcontext(), nodes={}, node_public_key_to_node_id={}, owner_to_node_ids={"": set()}
    )

    async def save(write, state, file):
        saves.append(len(saves))
        number, now = saves[-1], list(state.nodes)
        for _ in range(passes):
            await asyncio.sleep(0)
        if number in failing:
            raise OSError(28, "No space left on device")
        stored[:] = now

    async def app(scope, receive, send):
        number, key = scope["number"], b"%d" % scope["number"]
        state.nodes[number] = NodeInfo(node_id=number, public_key=key)
        state.node_public_key_to_node_id[key] = number
        state.owner_to_node_ids[""].add(number)
        await send({"type": "http.response.start", "status": 200})
        body = RegisterNodeResponse(node_id=number).SerializeToString()
        await send({"type": "http.response.body", "body": body})

    async def ask(registry, number, moment):
        for _ in range(moment):
            await asyncio.sleep(0)

        async def send(message):
            statuses.setdefault(number, message.get("status"))
            assert (number in stored) == (statuses[number] == 200)

        await registry({"type": "http", "path": CHANGING[0], "number": number}, None, send)

    async def main():
        registry = Registry(app, "nodes.json")
        asked = [ask(registry, number, moment) for number, moment in enumerate(moments, 1)]
        await asyncio.gather(*asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_registry, "run_in_threadpool", save)
        patch.setattr(node_registry, "state_of", lambda scope: state)
        asyncio.run(main())
    kept = {number for number, status in statuses.items() if status == 200}
    assert kept == set(state.nodes) == state.owner_to_node_ids[""] == set(stored or [])
    assert kept == set(state.node_public_key_to_node_id.values())
    assert set(statuses.values()) <= {200, 507}
    assert len(statuses) == len(moments)
    assert len(statuses) - len(kept) == len([n for n in saves if n in failing])
    if not any(n in failing for n in saves):
        assert len(saves) <= (LOOKS + 1) // passes + 2  # not one for each request


def test_the_operator_reads_that_a_key_is_not_registered(tmp_path, monkeypatch, capsys):
    for words in (["server", "here"], ["node", "kitchen"]):
        assert keys.main(["--keys", str(tmp_path), *words]) == 0
    with Server(keys=tmp_path, nodes=tmp_path / "nodes.json") as server:
        there = ["--keys", str(tmp_path), "--superlink", server.address]
        for word in ("register", "revoke"):
            with monkeypatch.context() as patch:
                patch.setattr(node_registry, "write_file", full_disk)
                assert keys.main([*there, word, "kitchen"]) == 1
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert "nodes.json cannot be written: No space left on device" in said
            if word == "register":
                assert keys.main([*there, word, "kitchen"]) == 0
        capsys.readouterr()
        keys.main([*there, "list"])
        assert "kitchen" not in capsys.readouterr().out


def full_disk(*_):
    raise OSError(28, "No space left on device")
