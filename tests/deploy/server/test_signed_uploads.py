"""A registered node cannot fill the server's memory with the bodies of its requests."""

import asyncio
import socket
from contextlib import ExitStack, suppress

import pytest
from fastapi import HTTPException
from flwr.superlink.main import create_app

from edgewire.deploy.server import signed_uploads
from edgewire.deploy.server.signed_uploads import COMPACT_CALLS, LARGEST, SMALL, BodyBudget
from tests.deploy.served import FakeNode, Server

LARGE = 80 << 20
FLOWERS = [each for each in create_app().openapi()["paths"] if each.startswith("/v1/fleet/")]
LIMITED = [f"{COMPACT_CALLS}pull", *FLOWERS, "/v1/fleet/edgewire", "/v1/fleet/edgewire/status"]


@pytest.fixture(scope="module")
def server():
    with Server() as there:
        yield there


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("path", [each for each in LIMITED if LARGEST.get(each, 0) < LARGE])
@pytest.mark.parametrize("said", [f"content-length: {LARGE}", "transfer-encoding: chunked"])
def test_a_call_has_a_largest_body_that_is_not_read_above(server, node, method, path, said):
    lines = [f"{method} {path} HTTP/1.1", "host: here", said]
    lines += [f"{name}: {value}" for name, value in node.headers().items()]
    with socket.create_connection(server.place, timeout=5) as line:
        line.sendall("\r\n".join([*lines, "", ""]).encode())
        assert line.recv(100).split()[1] == (b"413" if "length" in said else b"411")


@pytest.fixture(scope="module")
def node(server):
    made = FakeNode(server.address)
    yield made
    made.leave()


def test_small_bodies_are_not_counted_and_large_calls_are_pushes():
    large = {path.rpartition("/")[2] for path, most in LARGEST.items() if most > SMALL}
    assert large == {"push", "push-messages", "push-object"}


def test_large_bodies_share_a_budget(monkeypatch):
    monkeypatch.setattr(signed_uploads, "LEAST", 0)
    budget, events = BodyBudget(160), []

    async def hold(node, size, until=None):
        async with budget.held(node, size):
            events.append((node, size))
            await (until.wait() if until else asyncio.sleep(0.02))

    async def main():
        with pytest.raises(HTTPException, match="413"):
            await hold(1, 81)
        await asyncio.gather(hold(1, 80), hold(2, 70), hold(3, 20), hold(4, 10))
        assert events == [(1, 80), (2, 70), (4, 10), (3, 20)]  # the third waits
        events.clear()
        await asyncio.gather(hold(1, 15), hold(1, 15), hold(2, 70))
        assert events == [(1, 15), (2, 70), (1, 15)]  # a node's second body waits for its first
        monkeypatch.setattr(signed_uploads, "BUDGET_WAIT", 0.05)
        refused = asyncio.Event()
        both = [asyncio.create_task(hold(node, 80, refused)) for node in (1, 2)]
        await asyncio.sleep(0)  # they hold all
        with pytest.raises(HTTPException, match="503"):
            await asyncio.wait_for(hold(3, 10), 60)
        refused.set()
        await asyncio.gather(*both)
        await hold(3, 80)  # nothing stays held

    asyncio.run(main())


@pytest.mark.parametrize("free", [-1 << 20, 1 << 20, 300 << 20, 700 << 20])
def test_a_server_with_little_memory_takes_one_large_body_at_a_time(free, monkeypatch):
    """Models of 45 and 200 MB, sent as float32, reach a server with 1 GB, of which much is used."""
    monkeypatch.setattr(signed_uploads, "free_memory", lambda: free)
    budget, held, most = BodyBudget(), 0, 0

    async def hold(node, size):
        nonlocal held, most
        async with budget.held(node, size):
            held += size
            most = max(most, held)
            await asyncio.sleep(0.001)
            held -= size

    async def main():
        sizes = [200 << 20, 45 << 20, 200 << 20, 45 << 20, 256 << 20]
        await asyncio.gather(*(hold(node, size) for node, size in enumerate(sizes)))
        with pytest.raises(HTTPException, match="413"):
            await hold(1, (256 << 20) + 1)

    asyncio.run(main())
    assert most == 256 << 20


def test_a_push_waits_unread_until_there_is_memory():
    """A node's second large body is not read while the first one arrives; other nodes' are."""
    head = f"POST {COMPACT_CALLS}push HTTP/1.1\r\nhost: here\r\ncontent-length: {LARGE}\r\n\r\n"
    with Server(budget=BodyBudget(2 * LARGE)) as server, ExitStack() as stack:
        one, other = FakeNode(server.address), FakeNode(server.address)
        sent = []
        for node in (one, one, other):
            line = stack.enter_context(socket.create_connection(server.place, timeout=0.5))
            line.sendall(head.encode() + node.signed().ljust(1 << 16, b"\0"))
            sent.append(0)
            with suppress(TimeoutError):
                for _ in range(64):
                    sent[-1] += line.send(bytes(1 << 20)) >> 20
        assert sent[0] == sent[2] == 64
        assert sent[1] < 16
