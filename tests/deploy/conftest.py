import socket
import sys
import uuid
from collections import defaultdict
from contextlib import suppress

import httpx
import pytest
from flwr.cli.build import build_fab_from_disk

from edgewire.deploy import doctor, keys
from edgewire.deploy.doctor import WRONG
from tests.deploy.served import Server
from tests.deploy.servers import COUNTING


@pytest.fixture
def look(capsys):
    """Return a function that runs `deploy.doctor` and returns the exit code and its lines."""

    def call(*words):
        capsys.readouterr()
        code = doctor.main([str(word) for word in words])
        said = capsys.readouterr()
        assert said.err == ""
        found = {}
        for line in said.out.splitlines():
            level, what, text = line[:8].strip(), line[9:21].strip(), line[22:]
            found.setdefault(what, []).append((level, text))
        assert code == any(each[0] == WRONG for lines in found.values() for each in lines)
        return code, found

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Start a server with TLS that has registered one of two nodes; yield it and the key folder."""
    folder = tmp_path_factory.mktemp("keys")
    for words in (["server", "here"], ["node", "kitchen", "garden"]):
        assert keys.main(["--keys", str(folder), *words]) == 0
    with Server(keys=folder) as server:
        words = ["--keys", str(folder), "--superlink", server.address, "register", "kitchen"]
        assert keys.main(words) == 0
        yield server, folder


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="module")
def fab():
    """Yield the counting app's bundle; forget the modules that a node has imported of it."""
    yield build_fab_from_disk(COUNTING)
    for name in [name for name in sys.modules if name.partition(".")[0] == "counting"]:
        del sys.modules[name]


class Faults:
    """What fails at the next calls of nodes in this process.

    `calls`: the calls so far, by their paths. `next`: for each call, what fails at its next uses:
    "lost" (the request never arrives), "unanswered" (the request arrives, its answer does not), an
    HTTP status, or the answer itself.
    """

    def __init__(self):
        self.calls, self.next = [], defaultdict(list)

    def answer(self, real, client, url, **given):
        """Post a request as httpx's client does, unless the call has a fault."""
        _, is_call, call = str(url).partition("/v1/fleet/")
        if not is_call:
            return real(client, url, **given)
        self.calls.append(call)
        fault = self.next[call].pop(0) if self.next[call] else None
        if isinstance(fault, int | httpx.Response):
            found = httpx.Response(fault) if isinstance(fault, int) else fault
            found.request = httpx.Request("POST", url)
            return found
        found = None if fault == "lost" else real(client, url, **given)
        if fault:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return found


@pytest.fixture
def faults(monkeypatch):
    made, real = Faults(), httpx.Client.post

    def post(*given, **options):
        return made.answer(real, *given, **options)

    monkeypatch.setattr(httpx.Client, "post", post)
    return made


@pytest.fixture(scope="module")
def servers():
    """Yield a server with Flower's calls alone, and one with the project's own calls."""
    with Server(bundling=False) as plain, Server() as other:
        yield plain, other


@pytest.fixture
def superlink(servers):
    """Return a server with Flower's calls alone."""
    return servers[0]


@pytest.fixture
def notified(monkeypatch):
    """Return a function that returns what processes have told systemd since its last call."""
    name = f"edgewire-{uuid.uuid4().hex}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(f"\0{name}")
        there.setblocking(False)

        def received():
            found = []
            with suppress(BlockingIOError):
                while True:
                    found.append(there.recv(999).decode())
            return found

        yield received
