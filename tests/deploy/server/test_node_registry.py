"""A node is on the disk when the server says that it is registered; many nodes share a write."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.server import node_registry
from edgewire.deploy.server.node_registry import CHANGING, Registry

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
