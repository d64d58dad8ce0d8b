"""`deploy.doctor` on a device names each problem of a node and its remedy."""

import re
from argparse import Namespace

import pytest

from deploy import doctor
from deploy.device import checks
from deploy.device.client import FleetClient
from deploy.device.heartbeats import Membership
from deploy.device.node_folder import NodeFolder, is_taken
from deploy.findings import OK, WARNING, WRONG
from deploy.node import key_of
from protocol import flower_releases
from task.datasets import digits
from tests.deploy.entering import Kitchen

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
    assert [*found] == [
        "Python", "64 bit", "memory", "disk", "packages", "Flower", "data", "key", "certificate",
        "server", "round trip", "clock", "registered", "online", "versions",
    ]  # fmt: skip
    assert {level for lines in found.values() for level, _ in lines} <= {OK, WARNING}
    assert "2 folders, 2 files" in found["data"][0][1]
    assert "for here, localhost, 127.0.0.1, ::1, until " in found["certificate"][1][1]
    here = flower_releases.installed()
    assert re.search(rf"Flower {here}, .* here; Flower {here}, .* there", found["versions"][0][1])
    assert found["online"] == [(OK, "no, none runs here")]
    assert not (tmp_path / "state").exists()  # the doctor changes nothing


def test_a_node_s_own_data(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" * 999)
    (tmp_path / "empty").mkdir()
    found = [checks.own_data(tmp_path / name) for name in ("t.csv", "", "empty", "no")]
    assert [each.level for each in found] == [OK, OK, WRONG, WRONG]
    assert "a file of 3 kB" in found[0].text
    assert "1 folders, 1 files" in found[1].text


def test_a_node_that_is_online_here_or_elsewhere(place, look, tmp_path, photos):
    server, folder = place
    words = words_for(place, tmp_path, photos)
    node_folder = NodeFolder(tmp_path / "elsewhere")
    node = Kitchen(server, folder, node_folder)
    code, found = look(*words)
    assert code == 0
    assert found["online"][0][0] == WARNING
    assert "another machine uses the key" in found["online"][0][1]
    words[words.index("--state") + 1] = tmp_path / "elsewhere"
    assert look(*words)[1]["online"] == [(OK, "the node that runs here")]
    node.leave()
    assert "its log says why" in look(*words)[1]["online"][0][1]
    node_folder.close()
    assert look(*words)[1]["online"] == [(OK, "no, none runs here")]


def test_an_unregistered_key(place, look, tmp_path, photos):
    code, found = look(*words_for(place, tmp_path, photos, "garden"))
    assert code == 1
    assert found["registered"][0][0] == WRONG
    assert "deploy.keys register" in found["registered"][0][1]
    assert "versions" not in found  # the server tells versions to registered nodes only


def test_a_key_gives_no_information_about_another(place):
    server, folder = place
    key = key_of(folder / "nodes" / "kitchen.key")
    other = key_of(folder / "nodes" / "garden.key")
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
        (["--state", "/proc/x"], "disk", "--state /proc/x cannot be written"),
        (["--auth-supernode-private-key", __file__], "key", "is no private key"),
        (["--root-certificates", __file__], "certificate", "is none"),
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


def test_missing_digits_are_reported(superlink, look, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEWIRE_DATA", str(tmp_path))
    assert len(look(*plain(superlink, tmp_path))[1]["data"]) == 1
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    code, found = look(*plain(superlink, tmp_path))
    assert (code, len(found["data"])) == (0, 2)
    assert found["data"][1][0] == WARNING
    assert f"copy digits.csv.gz of a scikit-learn to {tmp_path}" in found["data"][1][1]
    (tmp_path / "digits.csv.gz").touch()
    assert len(look(*plain(superlink, tmp_path))[1]["data"]) == 1


@pytest.mark.parametrize("ahead", [400, -400])
def test_a_wrong_clock(ahead, superlink, look, tmp_path):
    superlink.clock = ahead
    _, found = look(*plain(superlink, tmp_path))
    ((level, text),) = found["clock"]
    assert level == WRONG
    assert "clock is" in text
    assert ("ahead" in text) == (ahead > 0)
    assert "registered" not in found  # the server refuses a signature with that time


def test_a_server_of_flowers_own_and_a_key_that_it_knows(superlink, look, tmp_path):
    code, found = look(*plain(superlink, tmp_path))
    assert code == 0
    assert found["server"][0][0] == WARNING
    assert "not yet" in found["registered"][0][1]
    node_folder = NodeFolder(tmp_path / "state")
    fleet = FleetClient(superlink.address, node_folder.key(), insecure=True)
    member = Membership(fleet, node_folder, registers=True)
    member.enter()
    assert (
        f"as node {member.node_id}, online"
        in look(*plain(superlink, tmp_path))[1]["registered"][0][1]
    )
    member.leave()
    node_folder.close()
    assert "none is online" in look(*plain(superlink, tmp_path))[1]["registered"][0][1]
    assert not superlink.online  # the doctor has changed nothing
    superlink.online.add(member.node_id)
    code, found = look(*plain(superlink, tmp_path))
    assert code == 1
    assert "counts an earlier life" in found["registered"][0][1]
    fleet.close()


def test_a_server_of_another_kind(superlink, look, tmp_path):
    # A server that claims to have bundles but has no status call.
    superlink.bundled, superlink.clock = True, 0.0
    code, found = look(*plain(superlink, tmp_path))
    assert code == 0
    assert found["server"][0][0] == OK


def test_missing_packages_and_another_flower_are_reported(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    (found,) = checks.packages(Namespace())
    assert (found.level, "./compression[node]" in found.text) == (WRONG, True)
    monkeypatch.setattr(checks, "installed", lambda: "1.39.0")
    (found,) = checks.flower(Namespace())
    assert (found.level, "1.39.0 was not tried" in found.text) == (WARNING, True)


def test_without_flower_the_doctor_prints_one_line(monkeypatch, look):
    monkeypatch.setattr(doctor, "MISSING", ImportError("No module named 'flwr'"))
    code, found = look("--superlink", "a:1", "--state", "s")
    assert code == 1
    assert "pip install" in found["Flower"][0][1]


def test_a_folder_of_an_older_version_is_reported(superlink, look, tmp_path):
    (tmp_path / "state" / "runs").mkdir(parents=True)
    code, found = look(*plain(superlink, tmp_path))
    assert code == 1
    assert "remove runs and claim in it" in found["state"][0][1]


def test_a_folder_in_use_by_a_node_is_reported(tmp_path):
    assert not is_taken(tmp_path)
    node_folder = NodeFolder(tmp_path)
    assert is_taken(tmp_path)
    node_folder.close()
    assert not is_taken(tmp_path)
