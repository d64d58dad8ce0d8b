"""A run's SuperLink serves only the user who started it."""

import asyncio
import os
import socket
import sys
from contextlib import ExitStack

import httpx
import pytest
from flwr.proto.control_pb2 import ListRunsRequest

from edgewire.engines import same_user_only
from edgewire.engines.private_superlink import private_superlink
from edgewire.engines.same_user_only import for_this_user, user_of
from edgewire.machine.errors import EngineError

NOBODY = 65534
linux = pytest.mark.skipif(
    not same_user_only.can_tell(), reason="only Linux says whose connections are"
)
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def listener():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        yield bound


def as_nobody(act):
    """Run a function as another user in a separate process; return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(NOBODY)
            os._exit(act())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@linux
def test_a_connections_user_is_known(listener):
    server = listener.getsockname()
    with socket.create_connection(server) as client:
        assert user_of(client.getsockname(), server) == os.geteuid()
        here = client.getsockname()
    assert user_of(here, server) is None
    assert user_of(("127.0.0.1", 9), server) is None


@linux
@root
def test_another_users_connection_has_no_user_once_closed(listener):
    server = listener.getsockname()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(NOBODY)
        with socket.create_connection(server):
            os.read(reading, 1)
        os._exit(0)
    with ExitStack() as stack:
        accepted, client = listener.accept()
        stack.enter_context(accepted)
        assert user_of(client, server) == NOBODY
        os.write(writing, b"x")
        os.waitpid(pid, 0)
        # The system's table names root as the user of a closed connection; the function does not.
        assert user_of(client, server) is None
    os.close(reading)
    os.close(writing)


def ask(app, **scope):
    """Return an app's answer to a request, and whether the request reached the inner app."""
    sent, reached = [], []

    async def inner(scope, receive, send):
        reached.append(scope["type"])

    async def send(message):
        sent.append(message)

    asyncio.run(app(inner)(scope, None, send))
    return sent, reached


@linux
def test_requests_of_unknown_users_are_refused(listener):
    server = listener.getsockname()
    with socket.create_connection(server) as client:
        own = {"client": client.getsockname(), "server": server}
        assert ask(for_this_user, type="http", **own) == ([], ["http"])
    for ends in (own, {"client": None, "server": server}, {"client": ("127.0.0.1", 9)}):
        sent, reached = ask(for_this_user, type="http", **ends)
        assert not reached
        assert sent[0]["status"] == 403
    assert ask(for_this_user, type="lifespan") == ([], ["lifespan"])


@pytest.mark.system
@linux
@root
def test_another_user_cannot_list_or_stop_a_run(tmp_path):
    with private_superlink(tmp_path / "log") as (server, client):
        assert client.ListRuns(ListRunsRequest()).now
        base = f"http://127.0.0.1:{server.args[server.args.index('--port') + 1]}"
        paths = ("health", "docs", "v1/control/list-runs", "v1/control/stop-run")

        def codes():  # without TLS files, which another user may be unable to read
            plain = {"trust_env": False, "verify": False}
            return {httpx.post(f"{base}/{path}", **plain).status_code for path in paths}

        assert 403 not in codes()
        assert as_nobody(lambda: 0 if codes() == {403} else 1) == 0


def test_the_log_warns_where_users_cannot_be_told_apart(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(same_user_only, "TABLE", tmp_path / "none")
    assert not same_user_only.can_tell()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    superlink = private_superlink(tmp_path / "log")
    with pytest.raises(EngineError, match="SuperLink ended"):
        superlink.__enter__()
    assert "any user of this machine" in caplog.text
