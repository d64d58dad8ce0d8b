"""A node is on the disk when the server says that it is registered.

A name has one id, whatever its keys are.
"""

from contextlib import nullcontext

import pytest
from fastapi import HTTPException
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy import keys
from edgewire.deploy.server import node_registry
from edgewire.deploy.server.node_registry import GONE, keep_nodes, load
from tests.deploy.served import Server


def started(file):
    """Return a server's state that keeps its nodes in a file."""
    state = InMemoryLinkState(NoOpFederationManager(), InMemoryObjectStore())
    keep_nodes(state, file)
    return state


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=20))
def test_a_node_is_registered_if_and_only_if_it_is_stored(tmp_path_factory, steps):
    """A step is a node, whether it registers itself, and whether the disk is full.

    A node that is registered is revoked by its step. A node that registers itself need not be
    stored.
    """
    file = tmp_path_factory.mktemp("registry") / "nodes.json"
    state, registered, own = started(file), {}, set()
    for node, itself, full in steps:
        number = registered.pop(node, None)
        itself = number in own if number else itself
        with pytest.MonkeyPatch.context() as patch:
            if full:
                patch.setattr(node_registry, "write_file", full_disk)
            refused = (
                pytest.raises(HTTPException, match="No space") if full and not itself else None
            )
            with refused or nullcontext():
                if number:
                    state.delete_node("owner", number)
                else:
                    beats = 0 if itself else 30
                    number = state.create_node("owner", "owner", b"%d" % node, beats)
                    registered[node] = number
                    own |= {number} if itself else set()
        stored = {each.node_id for each in load(file) if each.status != GONE}
        assert set(registered.values()) - own <= stored
        state.delete_node("owner", state.create_node("owner", "owner", b"another", 30))
        stored = {each.node_id for each in load(file) if each.status != GONE}
        assert stored == set(registered.values())
        known = {b"%d" % each: number for each, number in registered.items()}
        assert known == state.node_public_key_to_node_id


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

    state, ids, keys, unnamed = started(file), {}, {}, set()
    for number, name in enumerate(steps):
        if name == "restart":
            state = started(file)
        elif name in keys:
            state.delete_node("owner", ids[name])
            del keys[name]
        else:
            key = b"%d" % number
            node = state.create_node("owner", "owner", key, 30.0, name=name or None)
            assert ids.setdefault(name or f"unnamed {number}", node) == node
            keys |= {name: key} if name else {}
            unnamed |= set() if name else {node}
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
