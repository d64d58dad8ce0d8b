"""A node is on the disk when the server says that it is registered; many nodes share a write.

A name has one id, whatever its keys are.
"""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from flwr.proto.control_pb2 import RegisterNodeResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy import keys
from edgewire.deploy.server import node_registry
from edgewire.deploy.server.node_registry import CHANGING, GONE, Registry, keep_ids, restore, save
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
    state = SimpleNamespace(lock=nullcontext(), nodes={}, node_public_key_to_node_id={})

    async def save(write, state, file):
        saves.append(len(saves))
        number, now = saves[-1], [n for n, node in state.nodes.items() if node.status != GONE]
        for _ in range(passes):
            await asyncio.sleep(0)
        if number in failing:
            raise OSError(28, "No space left on device")
        stored[:] = now

    async def app(scope, receive, send):
        number, key = scope["number"], b"%d" % scope["number"]
        state.nodes[number] = NodeInfo(node_id=number, public_key=key)
        state.node_public_key_to_node_id[key] = number
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
    assert kept == {n for n, node in state.nodes.items() if node.status != GONE} == set(stored)
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


NAMES = ("kitchen", "garden", "attic", "")  # "": a node without a name


@given(st.lists(st.sampled_from([*NAMES, "restart"]), max_size=20))
def test_a_new_key_of_a_revoked_name_has_the_names_id_and_place(tmp_path_factory, steps):
    """A name in `steps` registers a new key, or revokes the name's key if it has one."""
    file = tmp_path_factory.mktemp("registry") / "nodes.json"

    def started():
        state = InMemoryLinkState(NoOpFederationManager(), InMemoryObjectStore())
        restore(state, file)
        keep_ids(state)
        return state

    state, ids, keys, unnamed = started(), {}, {}, set()
    for number, name in enumerate(steps):
        if name == "restart":
            state = started()
        elif name in keys:
            state.delete_node("owner", ids[name])
            del keys[name]
        else:
            key = b"%d" % number
            node = state.create_node("owner", "owner", key, 0.0, name=name or None)
            assert ids.setdefault(name or f"unnamed {number}", node) == node
            keys |= {name: key} if name else {}
            unnamed |= set() if name else {node}
        save(state, file)
        known = state.node_public_key_to_node_id
        assert {name: known.get(key) for name, key in keys.items()} == {n: ids[n] for n in keys}
        assert set(known.values()) == {ids[name] for name in keys} | unnamed
    assert len(set(ids.values())) == len(ids)
    placed = sorted(state.nodes.values(), key=lambda each: each.registered_at)
    assert [each.node_id for each in placed] == list(ids.values())
    assert {each.name for each in placed if each.status == GONE} == set(ids) & set(NAMES) - set(
        keys
    )
    assert set(state.owner_to_node_ids["owner"] if ids else ()) == set(ids.values())
