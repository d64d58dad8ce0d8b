"""The doctor: each thing that can be in the way of a node or a server is named, and what to do."""

import os
import re
import sys

import pytest
from cryptography import x509

from deploy import doctor, findings, keys, node_checks, releases
from deploy.dates import lasting
from deploy.findings import OK, WARNING, WRONG, Finding
from deploy.fleet import FleetClient
from deploy.journal import Journal, is_taken
from deploy.member import Member
from deploy.node import key_of
from tests.deploy.fakelink import FakeLink
from tests.deploy.served import Server
from tests.deploy.test_waiting import DAY, NOW, issued

MB = 1 << 20


@pytest.fixture
def look(capsys):
    """Run the doctor; return the exit code, and the lines by what they are about."""

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
    """A server with TLS that knows one of two nodes; yield it and the folder of keys."""
    folder = tmp_path_factory.mktemp("keys")
    for words in (["server", "here"], ["node", "kitchen", "garden"]):
        assert keys.main(["--keys", str(folder), *words]) == 0
    with Server(keys=folder) as server:
        words = ["--keys", str(folder), "--superlink", server.address, "register", "kitchen"]
        assert keys.main(words) == 0
        yield server, folder


@pytest.fixture
def photos(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").touch()
    return tmp_path / "photos"


def words_for(place, tmp_path, photos, name="kitchen"):
    server, folder = place
    return ["--superlink", server.address, "--state", tmp_path / "state",
            "--root-certificates", folder / "ca.crt",
            "--auth-supernode-private-key", folder / "nodes" / f"{name}.key",
            "--node-config", f'data="{photos}"']  # fmt: skip


def test_a_device_that_is_ready(place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos))
    assert code == 0
    assert [*found] == [
        "Python", "64 bit", "memory", "disk", "packages", "Flower", "data", "key", "certificate",
        "server", "round trip", "clock", "registered", "online", "versions",
    ]  # fmt: skip
    assert {level for lines in found.values() for level, _ in lines} <= {OK, WARNING}
    assert "2 classes, 2 files" in found["data"][0][1]
    assert "for here, localhost, 127.0.0.1, ::1, until " in found["certificate"][1][1]
    here = releases.installed()
    assert re.search(rf"Flower {here}, .* here; Flower {here}, .* there", found["versions"][0][1])
    assert found["online"] == [(OK, "no, none runs here")]
    assert not (tmp_path / "state").exists()  # nothing is changed


def test_a_node_that_is_online_here_or_elsewhere(place, look, tmp_path, photos):
    server, folder = place
    words = words_for(place, tmp_path, photos)
    key = key_of(folder / "nodes" / "kitchen.key")
    fleet = FleetClient(server.address, key, root_certificates=folder / "ca.crt")
    journal = Journal(tmp_path / "elsewhere")
    member = Member(fleet, journal, registers=False)
    member.enter()
    code, found = look(*words)
    assert code == 0
    assert found["online"][0][0] == WARNING
    assert "another machine uses the key" in found["online"][0][1]
    words[words.index("--state") + 1] = tmp_path / "elsewhere"
    assert look(*words)[1]["online"] == [(OK, "the node that runs here")]
    member.leave()
    assert "its log says why" in look(*words)[1]["online"][0][1]
    journal.close()
    assert look(*words)[1]["online"] == [(OK, "no, none runs here")]
    fleet.close()


def test_a_key_that_nobody_has_registered(place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos, "garden"))
    assert code == 1
    assert found["registered"][0][0] == WRONG
    assert "deploy.keys register" in found["registered"][0][1]
    assert "versions" not in found  # they are for nodes that are known


def test_a_key_tells_nobody_of_another(place):
    server, folder = place
    key = key_of(folder / "nodes" / "kitchen.key")
    other = key_of(folder / "nodes" / "garden.key")
    fleet = FleetClient(server.address, key, root_certificates=folder / "ca.crt")
    stranger = FleetClient(server.address, other, root_certificates=folder / "ca.crt")
    assert fleet.get("edgewire/status").json()["registered"]
    stranger.public_key = fleet.public_key  # whose signature it cannot make
    assert stranger.get("edgewire/status").status_code == 401
    fleet.close()
    stranger.close()


@pytest.mark.parametrize(
    ("words", "what", "says"),
    [
        (["--superlink", "nothing"], "server", "--superlink must be host:port"),
        (["--superlink", "127.0.0.1:1"], "server", "is not reached"),
        (["--node-config", "a=b=c"], "data", "--node-config: "),
        (["--node-config", "a=1"], "data", "none: give --node-config"),
        (["--node-config", 'data="/nowhere"'], "data", "/nowhere cannot be read: No such file"),
        (["--state", "/proc/x"], "disk", "--state /proc/x cannot be written"),
        (["--auth-supernode-private-key", __file__], "key", "is no private key"),
        (["--auth-supernode-private-key", "/nowhere"], "key", "No such file"),
        (["--root-certificates", __file__], "certificate", "is none"),
        (["--insecure"], "server", "exclude each other"),
    ],
)
def test_what_is_wrong_is_one_line(words, what, says, place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos), *words)
    assert code == 1
    assert any(level == WRONG and says in text for level, text in found[what]), found


@pytest.fixture
def link():
    link = FakeLink(b"")
    yield link
    link.stop()


def plain(link, tmp_path, *words):
    return ["--superlink", link.address, "--insecure", "--state", tmp_path / "state",
            "--node-config", "partition-id=0", *words]  # fmt: skip


@pytest.mark.parametrize("ahead", [400, -400])
def test_a_clock_that_is_off(ahead, link, look, tmp_path):
    link.clock = ahead
    _, found = look(*plain(link, tmp_path))
    ((level, text),) = found["clock"]
    assert level == WRONG
    assert "clock is" in text
    assert ("ahead" in text) == (ahead > 0)
    assert "registered" not in found  # a signature of that time is refused


def test_a_server_of_flowers_own_and_a_key_that_it_knows(link, look, tmp_path):
    code, found = look(*plain(link, tmp_path))
    assert code == 0
    assert found["server"][0][0] == WARNING
    assert "not yet" in found["registered"][0][1]
    journal = Journal(tmp_path / "state")
    fleet = FleetClient(link.address, journal.key(), insecure=True)
    member = Member(fleet, journal, registers=True)
    member.enter()
    assert (
        f"as node {member.node_id}, online" in look(*plain(link, tmp_path))[1]["registered"][0][1]
    )
    member.leave()
    journal.close()
    assert "none is online" in look(*plain(link, tmp_path))[1]["registered"][0][1]
    assert not link.online  # as before
    link.online.add(member.node_id)
    code, found = look(*plain(link, tmp_path))
    assert code == 1
    assert "counts an earlier life" in found["registered"][0][1]
    fleet.close()


def test_a_server_that_is_another(link, look, tmp_path):
    link.bundled, link.clock = True, 0.0  # it says that it has bundles, and knows no status
    code, found = look(*plain(link, tmp_path))
    assert code == 0
    assert found["server"][0][0] == OK


# the server's machine


def test_a_server_that_is_ready(place, look, tmp_path):
    server, folder = place
    port = server.address.rpartition(":")[2]
    node = Kitchen(server, folder)
    code, found = look("--server", "--keys", folder, "--port", port, "--state", tmp_path)
    node.leave()
    assert code == 0
    assert [*found] == ["Python", "64 bit", "memory", "disk", "Flower", "certificate", "nodes",
                        "results", "data", "server", "gate", "online"]  # fmt: skip
    assert found["gate"] == [(OK, "from outside, /v1/fleet/ alone is open")]
    assert found["online"] == [(OK, "1 of 1 nodes")]
    assert found["results"] == [(OK, f"EDGEWIRE_OUTPUT is {tmp_path / 'runs'}")]


class Kitchen:
    """The kitchen's node, for as long as it takes."""

    def __init__(self, server, folder):
        self._fleet = FleetClient(
            server.address, key_of(folder / "nodes" / "kitchen.key"),
            root_certificates=folder / "ca.crt",
        )  # fmt: skip
        self._member = Member(self._fleet, Nowhere(), registers=False)
        self._member.enter()

    def leave(self):
        self._member.leave()
        self._fleet.close()


class Nowhere:
    """A journal that remembers nothing."""

    def node_id(self, *_):
        return None

    def remember(self, *_):
        pass


def test_what_is_wrong_on_the_servers_machine(place, look, tmp_path, monkeypatch, link):
    _, folder = place
    other = tmp_path / "other"
    keys.main(["--keys", str(other), "server", "there"])
    os.replace(other / "server.key", tmp_path / "mixed.key")
    for name in ("ca.crt", "server.crt"):
        (other / name).write_bytes((folder / name).read_bytes())
    os.replace(tmp_path / "mixed.key", other / "server.key")
    (other / "server.key").chmod(0o644)
    (tmp_path / "nodes.json").write_text("[")
    monkeypatch.setenv("EDGEWIRE_OUTPUT", "/elsewhere")
    port = link.address.rpartition(":")[2]
    code, found = look("--server", "--keys", other, "--state", tmp_path, "--port", port,
                       "--data", "/nowhere")  # fmt: skip
    assert code == 1
    said = {what: " ".join(text for _, text in lines) for what, lines in found.items()}
    assert "is not the key of" in said["certificate"]
    assert "chmod 600" in said["certificate"]
    assert "damaged: move it away" in said["nodes"]
    assert "EDGEWIRE_OUTPUT=/elsewhere is not used" in said["results"]
    assert "/nowhere is no folder" in said["data"]
    assert found["server"][0][0] == WRONG  # somebody else listens there


def test_a_server_that_is_not_made_yet(look, tmp_path):
    link = FakeLink(b"")
    link.stop()
    port = link.server_port
    code, found = look("--server", "--keys", tmp_path, "--state", tmp_path / "s", "--port", port,
                       "--host", "127.0.0.1")  # fmt: skip
    assert code == 1
    assert "deploy.keys server NAME" in found["certificate"][0][1]
    assert found["server"] == [(WARNING, f"it does not run; port {port} is free")]
    code, found = look("--server", "--insecure", "--state", tmp_path / "s", "--port", port)
    assert code == 0
    assert not (tmp_path / "s").exists()


# any machine


@pytest.mark.parametrize(
    ("free", "level"), [(700, OK), (600, OK), (599, WARNING), (250, WARNING), (249, WRONG)]
)
def test_memory(free, level):
    (found,) = findings.memory(free * MB, 600 * MB, 250 * MB)
    assert (found.level, f"{free} MB" in found.words) == (level, True)


def test_free_memory_is_the_least_that_is_said(tmp_path):
    info = tmp_path / "meminfo"
    assert findings.free_memory(info, tmp_path) is None
    info.write_text("MemTotal:  9 kB\nMemAvailable:   2048 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert findings.free_memory(info, tmp_path) == 2 * MB
    (tmp_path / "memory.max").write_text(f"{3 * MB}\n")
    (tmp_path / "memory.current").write_text(f"{2 * MB}\n")
    assert findings.free_memory(info, tmp_path) == MB


@pytest.mark.parametrize(("version", "level"), [((3, 10), WRONG), ((3, 11), OK), ((3, 15), WRONG)])
def test_python(version, level, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    (found,) = findings.python()
    assert found.level == level


def test_32_bit(monkeypatch):
    monkeypatch.setattr(sys, "maxsize", (1 << 31) - 1)
    (found,) = findings.bits()
    assert found.level == WRONG


@pytest.mark.parametrize(("free", "level"), [(2 << 30, OK), (1 << 29, WARNING), (1 << 20, WRONG)])
def test_a_disk_that_fills(free, level, monkeypatch, tmp_path):
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda path: type("U", (), {"free": free}))
    (found,) = findings.disk(tmp_path / "a" / "b", "--state")
    assert found.level == level
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "end", "level", "says"),
    [(-2, 400, OK, "until"), (-2, 20, WARNING, "ends in"), (-2, -1, WRONG, "has ended"),
     (1, 9, WRONG, "set the clock")],
)  # fmt: skip
def test_dates(start, end, level, says, tmp_path):
    made = issued(tmp_path, "a", start=NOW + start * DAY, end=NOW + end * DAY)
    shown = x509.load_pem_x509_certificate(made.path.read_bytes())
    found = lasting("certificate", "it", shown, "renew it")
    assert (found.level, says in found.words) == (level, True)


def test_packages_that_are_missing_and_another_flower(monkeypatch):
    monkeypatch.setattr(node_checks, "find_spec", lambda name: None)
    (found,) = node_checks.packages()
    assert (found.level, "./compression[node]" in found.words) == (WRONG, True)
    monkeypatch.setattr(node_checks, "installed", lambda: "1.39.0")
    (found,) = node_checks.flower()
    assert (found.level, "1.39.0 was not tried" in found.words) == (WARNING, True)


def test_without_flower_there_is_a_line(monkeypatch, look):
    monkeypatch.setattr(doctor, "MISSING", ImportError("No module named 'flwr'"))
    code, found = look("--superlink", "a:1", "--state", "s")
    assert code == 1
    assert "pip install" in found["Flower"][0][1]


def test_a_check_that_fails_is_a_line():
    def check():
        yield Finding(OK, "a", "b")
        raise KeyError("c")

    first, second = findings.findings([("it", check)])
    assert first.level == OK
    assert str(second) == "wrong    it           this check failed: KeyError: 'c'"


def test_a_folder_is_taken_while_a_node_has_it(tmp_path):
    assert not is_taken(tmp_path)
    journal = Journal(tmp_path)
    assert is_taken(tmp_path)
    journal.close()
    assert not is_taken(tmp_path)
