"""`deploy.doctor` on the server's machine names each problem and its remedy."""

import os

from deploy import keys
from deploy.findings import OK, WARNING, WRONG
from tests.deploy.entering import Kitchen
from tests.deploy.fake_superlink import FakeSuperLink


def test_a_ready_server_has_no_problem(place, look, tmp_path):
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


def test_each_problem_on_the_servers_machine_is_named(
    place, look, tmp_path, monkeypatch, superlink
):
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
    port = superlink.address.rpartition(":")[2]
    code, found = look("--server", "--keys", other, "--state", tmp_path, "--port", port,
                       "--data", "/nowhere")  # fmt: skip
    assert code == 1
    said = {what: " ".join(text for _, text in lines) for what, lines in found.items()}
    assert "is not the key of" in said["certificate"]
    assert "chmod 600" in said["certificate"]
    assert "damaged: move it away" in said["nodes"]
    assert "EDGEWIRE_OUTPUT=/elsewhere is not used" in said["results"]
    assert "/nowhere is no folder" in said["data"]
    assert found["server"][0][0] == WRONG  # another program uses the port


def test_a_server_without_keys_or_state(look, tmp_path):
    superlink = FakeSuperLink(b"")
    superlink.stop()
    port = superlink.server_port
    code, found = look("--server", "--keys", tmp_path, "--state", tmp_path / "s", "--port", port,
                       "--host", "127.0.0.1")  # fmt: skip
    assert code == 1
    assert "deploy.keys server NAME" in found["certificate"][0][1]
    assert found["server"] == [(WARNING, f"it does not run; port {port} is free")]
    code, found = look("--server", "--insecure", "--state", tmp_path / "s", "--port", port)
    assert code == 0
    assert not (tmp_path / "s").exists()
