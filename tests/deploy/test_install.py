"""A device is installed from a bundle or by a link; a hostile bundle changes nothing."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewire.deploy import enrolment, install, keys
from edgewire.deploy.certificates import certificate_in, private_key
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from tests.deploy.served import Server

CONFIG = 'data="/srv/photos" survey=false'


@pytest.fixture
def run(capsys):
    """Return a function that runs `keys` or `install`; it returns its code and its lines."""

    def call(program, *words):
        capsys.readouterr()  # of the log of the server in this process
        code = program.main([str(word) for word in words])
        said = capsys.readouterr()
        lines = (said.err if code else said.out).splitlines()
        return code, lines[-1:] if code else lines  # after the server's log

    return call


@pytest.fixture
def device(tmp_path, monkeypatch):
    """Return the folder of a device's system; its systemctl writes what it was told to a file."""
    fake = tmp_path / "bin" / "systemctl"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/systemctl\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    return tmp_path / "device"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return the bytes of a bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    where = Path.cwd()
    os.chdir(folder)
    try:
        assert keys.main(["server", "my.server.org"]) == 0
        assert keys.main(["bundle", "kitchen", "--node-config", CONFIG]) == 0
    finally:
        os.chdir(where)
    assert stat.S_IMODE((folder / "kitchen.json").stat().st_mode) == 0o600
    return (folder / "kitchen.json").read_bytes()


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_bundle_is_installed_and_keeps_the_lines_of_the_owner(run, device, tmp_path, bundle):
    (tmp_path / "kitchen.json").write_bytes(bundle)
    assert run(install, tmp_path / "kitchen.json", "--root", device)[0] == 0
    made = device / "etc" / "edgewire"
    names = ["ca.crt", "node.crt", "node.env", "node.key"]
    assert sorted(os.listdir(made)) == names
    modes = [stat.S_IMODE((made / name).stat().st_mode) for name in ("", *names)]
    assert modes == [0o755, 0o644, 0o644, 0o600, 0o600]
    shown = certificate_in(made / "node.crt")
    assert shown.public_key() == private_key(made / "node.key").public_key()
    assert (made / "node.env").read_text() == (
        f"SUPERLINK=my.server.org:8000\nNODE_CONFIG='{CONFIG}'\n"
    )
    unit = (device / "etc/systemd/system/edgewire-node.service").read_text()
    assert "ExecStart=/opt/edgewire/.venv/bin/python" in unit
    assert (tmp_path / "systemctl").read_text() == f"--root {device} enable edgewire-node.service\n"
    own = "SUPERLINK=my.server.org:8000\nNODE_CONFIG=''\nno_proxy=my.server.org\n"
    (made / "node.env").write_text(own)
    _, lines = run(install, tmp_path / "kitchen.json", "--root", device)
    assert lines[0] == f"{made / 'node.env'} stays as it is"
    assert (made / "node.env").read_text() == own
    run(install, tmp_path / "kitchen.json", "--root", device, "--node-config", "a=1")
    assert (made / "node.env").read_text().endswith("NODE_CONFIG='a=1'\n")
    code, (line,) = run(
        install, tmp_path / "kitchen.json", "--root", device, "--node-config", "a='"
    )
    assert code == 2
    assert "--node-config" in line


NAMES = ["node.key", "ca.crt", "node.crt", "superlink", "node-config", "../../x"]
CONTENTS = [
    "",
    "\0" * 70_000,
    "my.server.org:8000",
    "a\nLD_PRELOAD=/tmp/x.so",
    "\x1b[2J:1",
    "\ud800",
]
VALUES = [*CONTENTS, None, 7, [], {"a": []}]


@st.composite
def damaged(draw, bundle):
    """Return a bundle with other values, or one that is cut, or with other bytes."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return draw(st.sampled_from([b"", b"7", b"[" * 60_000, b"\xff", b'{"node.key": ']))
    if kind == 1:
        said, names = json.loads(bundle), st.lists(st.sampled_from(NAMES), max_size=3)
        said |= {name: draw(st.sampled_from(VALUES)) for name in draw(names)}
        for name in draw(names):
            said.pop(name, None)
        return json.dumps(said).encode()
    at, more = draw(st.integers(0, 5000)), draw(st.binary(max_size=3))
    return bundle[:at] + more + bundle[at + len(more) :] * draw(st.booleans())


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_hostile_bundle_changes_nothing(run, device, tmp_path, bundle, data):
    folder = device / "etc" / "edgewire"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("node.key", "ca.crt", "node.env"):
        (folder / name).write_bytes(b"before")
    file = tmp_path / "kitchen.json"
    file.write_bytes(data.draw(damaged(bundle)))

    def others():
        found = content(tmp_path).items()
        return {path: each for path, each in found if path.parent.name != "unpacked"}

    before = others()
    code, lines = run(install, file, "--root", device)
    assert "\x1b" not in "".join(lines)
    if code == 0:  # the damage was in a place without meaning
        private_key(folder / "node.key")
    else:
        assert (code, others()) == (2, before)


def test_a_device_enrols_and_later_gets_a_new_key(run, device, tmp_path, monkeypatch):
    folder, nodes = tmp_path / "keys", tmp_path / "nodes.json"
    run(keys, "--keys", folder, "server", "127.0.0.1")
    with Server(keys=folder, nodes=nodes) as server:
        here = ["--keys", folder, "--superlink", server.address]
        monkeypatch.setattr(enrolment, "WRONG", 0.01)
        listed = lambda: run(keys, *here, "list")[1]  # noqa: E731
        _, (link,) = run(keys, *here, "enrol", "kitchen")
        assert link.startswith(f"edgewire://127.0.0.1:{server.place[1]}#")
        address, digest, token = install.LINK.fullmatch(link).groups()
        for wrong, says in (
            (f"edgewire://{address}#{digest[::-1]}/{token}", "has not the CA"),
            (f"edgewire://{address}#/{token}", "is no link"),
            (f"edgewire://{address}#{digest}/{token[::-1]}", "is unknown"),
            (f"edgewire://127.0.0.1:1#{digest}/{token}", "is not reached"),
        ):
            code, (line,) = run(install, wrong, "--root", device)
            assert code
            assert says in line
        assert listed() == ["no node is registered"]
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "")  # no systemctl: the same link works again afterwards
            assert run(install, link, "--root", device, "--node-config", CONFIG)[0] == 1
        assert run(install, link, "--root", device, "--node-config", CONFIG)[0] == 0
        assert listed()[0].startswith("kitchen ")
        made = device / "etc" / "edgewire"
        assert sorted(os.listdir(made)) == ["ca.crt", "node.env", "node.key"]
        code, (line,) = run(install, link, "--root", device)
        assert (code, "a device has used this token already" in line) == (1, True)
        code, (line,) = run(keys, *here, "enrol", "kitchen")
        assert (code, "is registered: --renew" in line) == (2, True)
        assert run(keys, *here, "enrol", "kü") == (2, ["error: 'kü' is no name for a node"])

        def online(state):
            fleet = FleetClient(
                server.address, private_key(made / "node.key"), root_certificates=made / "ca.crt"
            )
            member = Membership(fleet, NodeFolder(tmp_path / state), registers=False)
            member.enter()
            return member, fleet

        first, old = online("first")
        first.stop()  # as a node that was killed: the server counts it as online
        _, (link,) = run(keys, *here, "enrol", "--renew", "kitchen")
        assert run(install, link, "--root", device)[0] == 0
        assert CONFIG in (made / "node.env").read_text()
        assert old.get("edgewire/status").json()["registered"]  # until the new key is used
        second, new = online("second")
        assert second.node_id == first.node_id
        assert not old.get("edgewire/status").json()["registered"]
        second.leave()
        assert len(listed()) == 1
        for each in (old, new):
            each.close()
    with Server(keys=folder, nodes=nodes) as server:
        assert FleetClient.get(new_client(server, made), "edgewire/status").json()["registered"]


def new_client(server, made):
    key = private_key(made / "node.key")
    return FleetClient(server.address, key, root_certificates=made / "ca.crt")
