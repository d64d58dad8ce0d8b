"""`edgewire.deploy.doctor` names each problem of a node or of the server, and its remedy."""

from types import SimpleNamespace

import pytest
from cryptography import x509

from edgewire.deploy import doctor, keys
from edgewire.deploy.certificates import private_key
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.doctor import OK, WARNING, WRONG, lasting
from tests.deploy.device.test_backoff import DAY, NOW, issued

MB = 1 << 20


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


def test_a_ready_device_has_no_problem(place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos))
    assert code == 0
    checks = ["memory", "data", "key", "certificate", "server", "clock", "registered"]
    assert [each for each in found if each != "torch"] == checks
    assert {level for lines in found.values() for level, _ in lines} <= {OK, WARNING}
    assert "holds 2 files and folders" in found["data"][0][1]
    assert "for here, localhost, 127.0.0.1, ::1, until " in found["certificate"][1][1]
    assert not (tmp_path / "state").exists()  # the doctor changes nothing


@pytest.mark.parametrize(
    ("line", "device", "warns"),
    [
        ("cuda: Optional[str] = '13.2'", "nvme0", True),
        ("cuda: Optional[str] = '13.2'", "nvidia0", False),
        ("cuda = '12.8'", "null", True),
        ("cuda: Optional[str] = None", "null", False),
        ("", "null", False),
    ],
)
def test_a_torch_for_gpus_without_a_gpu(line, device, warns, tmp_path, monkeypatch):
    (tmp_path / device).touch()
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\n{line}\nhip = None\n")
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(doctor, "find_spec", lambda name: spec)
    monkeypatch.setattr(doctor, "DEVICES", tmp_path)
    assert [each.level for each in doctor.torch_of_node(None)] == [WARNING] * warns


def test_a_node_s_own_data(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" * 999)
    (tmp_path / "empty").mkdir()
    found = [doctor.own_data(tmp_path / name) for name in ("t.csv", "", "empty", "no")]
    assert [each.level for each in found] == [OK, OK, WRONG, WRONG]
    assert "a file of 3 kB" in found[0].text


def test_an_unregistered_key(place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos, "garden"))
    assert code == 1
    assert found["registered"][0][0] == WRONG
    assert "edgewire.deploy.keys register" in found["registered"][0][1]


def test_a_key_gives_no_information_about_another(place):
    server, folder = place
    key = private_key(folder / "nodes" / "kitchen.key")
    other = private_key(folder / "nodes" / "garden.key")
    fleet = FleetClient(server.address, key, root_certificates=folder / "ca.crt")
    stranger = FleetClient(server.address, other, root_certificates=folder / "ca.crt")
    assert fleet.get("edgewire/status").json()["registered"]
    stranger.public_key = fleet.public_key  # the stranger cannot sign for this key
    assert stranger.get("edgewire/status").status_code == 401
    fleet.close()
    stranger.close()


@pytest.mark.parametrize(
    ("words", "what", "says"),
    [
        (["--superlink", "127.0.0.1:1"], "server", "is not reached"),
        (["--node-config", "a=b=c"], "data", "--node-config: "),
        (["--node-config", "a=1"], "data", "none: give --node-config"),
        (["--node-config", 'data="/nowhere"'], "data", "/nowhere cannot be read: No such file"),
        (["--auth-supernode-private-key", __file__], "key", "is no private key"),
        (["--root-certificates", __file__], "server", "--root-certificates"),
        (["--insecure"], "server", "exclude each other"),
    ],
)
def test_a_problem_gives_one_line(words, what, says, place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos), *words)
    assert code == 1
    assert any(level == WRONG and says in text for level, text in found[what]), found


def plain(superlink, tmp_path, *words):
    return ["--superlink", superlink.address, "--insecure", "--state", tmp_path / "state",
            "--node-config", "partition-id=0", *words]  # fmt: skip


@pytest.mark.parametrize("ahead", [400, -400])
def test_a_wrong_clock(ahead, superlink, look, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "ahead_of", lambda response: ahead)
    _, found = look(*plain(superlink, tmp_path))
    ((level, text),) = found["clock"]
    assert level == WRONG
    assert "clock is" in text
    assert ("ahead" in text) == (ahead > 0)
    assert "registered" not in found  # the server refuses a signature with that time


@pytest.mark.parametrize(
    ("bundled", "says"),
    [(False, "this server does not say"), (True, "does not know this node's own key: it takes")],
)
def test_a_node_that_makes_its_own_key(bundled, says, servers, look, tmp_path):
    server = servers[bundled]
    code, found = look(*plain(server, tmp_path))
    assert code == 0
    assert found["server"][0][0] == (OK if bundled else WARNING)
    assert "not yet" in found["registered"][0][1]
    node_folder = NodeFolder(tmp_path / "state")
    node_folder.key()
    node_folder.close()
    code, found = look(*plain(server, tmp_path))
    assert code == 0
    assert says in found["registered"][0][1]
    assert not server.state.get_node_info()  # the doctor has changed nothing


@pytest.mark.parametrize(
    ("free", "level"), [(600, OK), (599, WARNING), (250, WARNING), (249, WRONG)]
)
def test_memory(free, level, superlink, look, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "free_memory", lambda: free * MB)
    ((found, text),) = look(*plain(superlink, tmp_path))[1]["memory"]
    assert (found, f"{free} MB" in text) == (level, True)


@pytest.mark.parametrize(
    ("start", "end", "level", "says"),
    [(-2, 400, OK, "until"), (-2, 20, WARNING, "ends in"), (-2, -1, WRONG, "has ended"),
     (1, 9, WRONG, "set the clock")],
)  # fmt: skip
def test_dates(start, end, level, says, tmp_path):
    made = issued(tmp_path, "a", start=NOW + start * DAY, end=NOW + end * DAY)
    shown = x509.load_pem_x509_certificate(made.read_bytes())
    found = lasting("it", shown, "renew it")
    assert (found.level, says in found.text) == (level, True)


def test_a_failing_check_gives_one_line(superlink, look, tmp_path, monkeypatch):
    def failing():
        raise KeyError("c")

    monkeypatch.setattr(doctor, "free_memory", failing)
    _, found = look(*plain(superlink, tmp_path))
    assert found["memory"] == [(WRONG, "this check failed: KeyError: 'c'")]
    assert "server" in found


def test_a_ready_server_has_no_problem(place, look, tmp_path):
    code, found = look("--server", "--keys", place[1], "--state", tmp_path / "s")
    assert code == 0
    assert [*found] == ["memory", "data", "certificate"]
    assert not (tmp_path / "s").exists()


def test_each_problem_on_the_servers_machine_is_named(place, look, tmp_path):
    code, found = look("--server", "--keys", tmp_path, "--data", "/nowhere")
    assert code == 1
    assert "No such file" in found["certificate"][0][1]
    assert "edgewire.deploy.keys server NAME" in found["certificate"][0][1]
    assert "/nowhere is no folder" in found["data"][0][1]
    keys.main(["--keys", str(tmp_path), "server", "there"])
    (tmp_path / "server.key").chmod(0o644)
    for name, says in (("ca.crt", "is not signed by"), ("server.crt", "KEY_VALUES_MISMATCH")):
        (tmp_path / name).write_bytes((place[1] / name).read_bytes())
        (_, open_to_others), (_, said) = look("--server", "--keys", tmp_path)[1]["certificate"]
        assert "chmod 600" in open_to_others
        assert says in said
