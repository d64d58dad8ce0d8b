"""A node is on the disk when the server says that it is registered; many nodes share a write.

A name has one id, whatever its keys are.
"""

import asyncio
from types import SimpleNamespace

import pytest
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.server import node_registry
from edgewire.deploy.server.node_registry import CHANGING, GONE, Registry, keep_ids, restore, save

LOOKS = 40  # passes of the event loop in which all requests are made


@given(
    st.lists(st.integers(0, LOOKS), min_size=1, max_size=30),
    st.sets(st.integers(0, 30)),
    st.integers(1, 10),
)
def test_a_registered_node_is_stored_before_the_answer(moments, failing, passes):
    """Requests come at these moments; a save takes some passes of the loop, and some saves fail."""
    known, stored, saves = [], [], []

    async def save(write, state, file):
        saves.append(len(saves))
        number, now = saves[-1], list(known)
        for _ in range(passes):
            await asyncio.sleep(0)
        if number in failing:
            raise OSError("no space")
        stored[:] = now

    async def app(scope, receive, send):
        known.append(scope["number"])
        await send({"type": "http.response.start"})

    async def ask(registry, number, moment):
        for _ in range(moment):
            await asyncio.sleep(0)

        async def send(message):
            assert number in stored

        scope = {"type": "http", "path": CHANGING[0], "number": number}
        await registry(scope, None, send)

    async def main():
        registry = Registry(app, None)
        asked = [ask(registry, number, moment) for number, moment in enumerate(moments)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_registry, "run_in_threadpool", save)
        patch.setattr(node_registry, "state_of", lambda scope: SimpleNamespace())
        found = asyncio.run(main())
    assert {type(each) for each in found} <= {type(None), OSError}
    assert sum(each is not None for each in found) == len([n for n in saves if n in failing])
    if not failing:
        assert len(saves) <= (LOOKS + 1) // passes + 2  # not one for each request


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
