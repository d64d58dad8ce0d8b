"""A waiting node logs one line that names the cause and the remedy."""

import datetime
import ipaddress
import json
import re
import time
from contextlib import nullcontext
from email.utils import formatdate

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgewire.deploy.device.backoff import WORTH_WAITING, reason_of
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.node import main, node_config_of
from tests.deploy.damage import DAMAGE
from tests.deploy.served import Server

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
PEM = serialization.Encoding.PEM


def issued(folder, name, *, address="127.0.0.1", start=NOW - DAY, end=NOW + DAY):
    """Write a self-signed certificate and its key; return the certificate's path."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1, start, end)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.crt"
    path.write_bytes(made.public_bytes(PEM))
    secret = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.with_suffix(".key").write_bytes(secret)
    return path


def enter(superlink, folder, *, registers=True, certificates=None):
    """Try to come online; return the line that the node logs."""
    node_folder = NodeFolder(folder)
    fleet = FleetClient(
        superlink.address, node_folder.key(), insecure=certificates is None,
        root_certificates=certificates,
    )  # fmt: skip
    member = Membership(fleet, node_folder, registers=registers)
    try:
        member.enter()
    except WORTH_WAITING as error:
        reason = reason_of(error, fleet)
        assert "\n" not in reason
        return reason
    finally:
        member.stop()
        fleet.close()
        node_folder.close()
    return ""


def id_of(folder):
    return json.loads((folder / "node.json").read_text())["node"]


def test_a_key_that_is_not_registered_or_no_longer(superlink, tmp_path):
    for known in (False, True):
        said = enter(superlink, tmp_path, registers=False)
        assert "does not know this node's key: register it" in said
        if not known:
            assert not enter(superlink, tmp_path)
            (node,) = superlink.state.get_node_info(node_ids=[id_of(tmp_path)])
            superlink.state.delete_node(node.owner_aid, node.node_id)


def test_an_earlier_process_of_the_node_that_is_still_online(superlink, tmp_path):
    assert not enter(superlink, tmp_path)
    number = id_of(tmp_path)
    (tmp_path / "node.json").unlink()  # the node forgets its id
    assert "counts an earlier life of this node as online" in enter(superlink, tmp_path)
    superlink.state.deactivate_node(number)
    assert not enter(superlink, tmp_path)


@pytest.mark.parametrize("registers", [True, False])
def test_a_new_card_with_the_same_key_goes_on_under_the_same_id(registers, tmp_path):
    """The node's earlier process still counts as online, and the node has lost its id."""
    with Server() as server:
        assert not enter(server, tmp_path)
        number = id_of(tmp_path)
        for damage in DAMAGE.values():
            damage(tmp_path / "node.json")
            assert not enter(server, tmp_path, registers=registers)
            assert id_of(tmp_path) == number
        (node,) = server.state.get_node_info(node_ids=[number])
        server.state.delete_node(node.owner_aid, number)
        assert "does not know this node's key" in enter(server, tmp_path, registers=False)


def dated(ahead):
    """Return a refusal of a server whose clock is behind."""
    return httpx.Response(401, headers={"date": formatdate(time.time() - ahead, usegmt=True)})


@pytest.mark.parametrize(
    ("call", "answer", "says"),
    [
        ("register-node", lambda: httpx.Response(412, json={"code": 2001}), "--auth-supernode-pri"),
        ("activate-node", lambda: dated(400.3), "clock is (400|401) s ahead of"),
        ("activate-node", lambda: dated(-399.7), "clock is (399|400|401) s behind"),
        ("activate-node", lambda: dated(8.3), r"clock is (8|9|\d\d) s ahead"),
        ("activate-node", lambda: dated(0.0), "^(?!.*clock).*signature"),
        ("register-node", lambda: 404, "does not serve Flower's Fleet API"),
        ("register-node", lambda: 500, " answers 500: Internal Server Error$"),
    ],
)
def test_a_servers_refusal_names_its_cause(call, answer, says, superlink, tmp_path, faults):
    faults.next[call].append(answer())
    said = enter(superlink, tmp_path)
    assert re.search(says, said), said


@pytest.mark.parametrize(
    ("address", "says"),
    [("nowhere.invalid:1", ""), ("127.0.0.1:1", r"\[Errno 111\] Connection refused")],
)
def test_a_server_that_is_not_reached(address, says, tmp_path):
    fleet = FleetClient(address, NodeFolder(tmp_path).key(), insecure=True)
    with pytest.raises(httpx.TransportError) as error:
        fleet.bundles()
    assert re.match(f"{address} is not reached: {says}", reason_of(error.value, fleet))


@pytest.mark.parametrize(
    ("options", "trusted", "says"),
    [
        ({"end": NOW - DAY / 2}, "server", "certificate has expired; renew it"),
        ({"start": NOW + DAY / 2}, "server", "not yet valid; is this machine's clock behind"),
        ({"address": "127.0.0.2"}, "server", "--superlink must be a name or address that is in"),
        ({}, "other", "--root-certificates must name the CA"),
        (None, "other", "does not speak TLS"),
        ({}, "server", ""),
    ],
)
def test_an_invalid_certificate(options, trusted, says, superlink, tmp_path):
    issued(tmp_path, "other")
    issued(tmp_path, "server", **options or {})
    with nullcontext(superlink) if options is None else Server(keys=tmp_path) as server:
        said = enter(server, tmp_path / "node", certificates=tmp_path / f"{trusted}.crt")
    assert says in said, said
    assert bool(said) is bool(says)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("secure=sum secure-least=5", {"secure": "sum", "secure-least": 5}),
        ("secure=\"x y=z\" data='a b=c'", {"secure": "x y=z", "data": "a b=c"}),
        ("a=true b=1.5 survey=false", {"a": True, "b": 1.5, "survey": False}),
    ],
)
def test_a_word_of_a_node_config_needs_no_quotes(text, found):
    assert node_config_of(text) == found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--superlink", "a"], "--superlink a: give HOST:PORT, as in 127.0.0.1:8000"),
        (["--insecure", "--root-certificates", "x"], "exclude each other"),
        (["--root-certificates", "x"], "--root-certificates x: No such file"),
        (["--auth-supernode-private-key", "x"], "x: No such file"),
        (["--auth-supernode-private-key", __file__], "is no private key"),
        (["--insecure", "--app", "edgewire"], "--app edgewire is no SHA-256"),
        (["--insecure", "--node-config", "a=b=c"], "--node-config: "),
        (["--insecure", "--node-config", "survey=no"], "--node-config: "),
        (["--insecure", "--node-config", 'a="x b=c'], "--node-config: "),
        (["--insecure", "--state", "/dev/null/x"], "--state /dev/null/x cannot be used"),
    ],
)
def test_a_mistake_on_the_command_line_gives_one_line(words, says, tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(["--superlink", "127.0.0.1:1", "--state", str(tmp_path / "node"), *words])
    said = capsys.readouterr().err
    assert done.value.code == 2
    assert says in said.splitlines()[-1], said
