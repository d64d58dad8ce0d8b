import sys

import pytest
from flwr.cli.build import build_fab_from_disk

from edgewire.deploy import doctor, keys
from edgewire.deploy.doctor import WRONG
from tests.deploy.fake_superlink import FakeSuperLink
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


@pytest.fixture
def superlink():
    superlink = FakeSuperLink(b"")
    yield superlink
    superlink.stop()
