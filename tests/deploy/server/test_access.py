"""Clients from outside reach only the calls that nodes need."""

import asyncio

import pytest

from edgewire.deploy.server.access import FORWARDED, LocalOnly

INSIDE = [("127.0.0.1", 5), ("127.8.9.1", 5), ("::1", 5), ("::ffff:127.0.0.1", 5)]
OUTSIDE = [("192.0.2.7", 5), ("fe80::1%eth0", 5), ("::ffff:192.0.2.7", 5), ("0.0.0.0", 5),
           ("localhost", 5), ("", 5), None]  # fmt: skip
FOR_NODES = [
    "/v1/fleet/pull-messages",
    "/v1/fleet/edgewire/compact/pull",
    "/v1/fleet/activate-node",
]
NOT_FOR_NODES = [
    "/", "/docs", "/openapi.json", "/health", "/v1/control/start-run", "/v1/control/list-nodes",
    "/v1/control/edgewire/runs/a", "/v1/control/edgewire/fleet", "/v1/runtime/edgewire/push",
    "/v1/runtime/pull-object",
    "/v1/fleet", "//v1/fleet/x", "/V1/FLEET/x", "/v1/control/x?/v1/fleet/", "/v1/responses",
    "/metrics", "/healthz",
]  # fmt: skip


def asked(path, client, *, headers=()):
    """Pass a request to the access control; return the status 200 of the app, or a refusal."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": client}
    asyncio.run(LocalOnly(app)(scope | {"headers": list(headers)}, None, send))
    return sent[0]["status"]


@pytest.mark.parametrize("client", INSIDE)
def test_from_inside_every_call_is_allowed(client):
    for path in [*FOR_NODES, *NOT_FOR_NODES]:
        assert asked(path, client) == 200


@pytest.mark.parametrize("client", OUTSIDE)
def test_from_outside_only_the_nodes_calls_are_allowed(client):
    assert [asked(path, client) for path in FOR_NODES] == [200] * len(FOR_NODES)
    assert {asked(path, client) for path in NOT_FOR_NODES} == {403}


@pytest.mark.parametrize("header", sorted(FORWARDED))
def test_a_forwarded_request_counts_as_from_outside(header):
    said = [(header.title(), b"127.0.0.1")]
    assert asked("/v1/control/start-run", ("127.0.0.1", 5), headers=said) == 403
    assert asked("/v1/fleet/pull-messages", ("127.0.0.1", 5), headers=said) == 200
