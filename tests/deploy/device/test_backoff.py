"""A waiting node logs one line that names the cause and the remedy."""

import datetime
import ipaddress
import re
import ssl
from dataclasses import dataclass

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.device.backoff import WORTH_WAITING, reason_of
from deploy.device.client import FleetClient, ServerRefusal
from deploy.device.heartbeats import Membership
from deploy.device.node_folder import NodeFolder
from deploy.node import main
from tests.deploy.fake_superlink import FakeSuperLink

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
PEM = serialization.Encoding.PEM


@dataclass
class Issued:
    """A certificate and its key as files."""

    certificate: str
    key: str
    path: object


def issued(folder, name, *, address="127.0.0.1", start=NOW - DAY, end=NOW + DAY):
    """Return a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1, start, end)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(PEM))
    secret = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)
    return Issued(str(folder / f"{name}.pem"), str(folder / f"{name}.key"), folder / f"{name}.pem")


@pytest.fixture
def superlink():
    superlink = FakeSuperLink(b"")
    yield superlink
    superlink.stop()


def enter(superlink, node_folder, *, registers=True, certificates=None):
    """Try to come online; return the line that the node logs."""
    fleet = FleetClient(
        superlink.address, node_folder.key(), insecure=certificates is None,
        root_certificates=certificates,
    )  # fmt: skip
    member = Membership(fleet, node_folder, registers=registers)
    try:
        member.enter()
    except WORTH_WAITING as error:
        reason = reason_of(error, fleet, member.known)
        assert "\n" not in reason
        return reason
    finally:
        fleet.close()
    return ""


def test_a_key_that_is_not_registered(superlink, tmp_path):
    node_folder = NodeFolder(tmp_path)
    said = enter(superlink, node_folder, registers=False)
    assert "does not know this node's key: register it" in said
    assert "online" in said
    assert not superlink.nodes


def test_a_key_that_was_known(superlink, tmp_path):
    node_folder = NodeFolder(tmp_path)
    assert not enter(superlink, node_folder)
    superlink.nodes.clear()
    superlink.online.clear()
    said = enter(superlink, node_folder, registers=False)
    assert "does not know this node's key: register it" in said
    assert "online" not in said


def test_an_earlier_process_of_the_node_that_is_still_online(superlink, tmp_path):
    node_folder = NodeFolder(tmp_path)
    assert not enter(superlink, node_folder)
    (tmp_path / "node.json").unlink()  # the node forgets its id
    assert "counts an earlier life of this node as online" in enter(superlink, node_folder)
    superlink.online.clear()
    assert not enter(superlink, node_folder)


def test_a_server_that_accepts_registered_keys_only(superlink, tmp_path):
    superlink.registers = False
    assert "--auth-supernode-private-key" in enter(superlink, NodeFolder(tmp_path))


@pytest.mark.parametrize(
    ("ahead", "words"),
    [(400, "(400|401) s ahead of"), (-400, "(399|400|401) s behind"), (8, "[89] s ahead")],
)
def test_a_wrong_clock_is_named_with_its_error(ahead, words, superlink, tmp_path):
    node_folder = NodeFolder(tmp_path)
    superlink.clock = ahead + 0.3
    superlink.faults["activate_node"].append(401)
    said = enter(superlink, node_folder)
    assert re.search(f"clock is {words}", said), said


def test_a_correct_clock_is_not_blamed(superlink, tmp_path):
    superlink.faults["activate_node"].append(401)
    said = enter(superlink, NodeFolder(tmp_path))
    assert "clock" not in said
    assert "signature" in said


def test_another_server(superlink, tmp_path):
    superlink.faults["register_node"].append(404)
    assert "does not serve Flower's Fleet API" in enter(superlink, NodeFolder(tmp_path))


def test_a_server_that_does_not_run(superlink, tmp_path):
    superlink.stop()
    assert "is not reached: [Errno 111] Connection refused" in enter(
        superlink, NodeFolder(tmp_path)
    )


def test_an_unknown_host_name(tmp_path):
    fleet = FleetClient("nowhere.invalid:1", NodeFolder(tmp_path).key(), insecure=True)
    with pytest.raises(httpx.TransportError) as error:
        fleet.bundles()
    assert "nowhere.invalid:1 is not reached: " in reason_of(error.value, fleet)


def tls(superlink, shown):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    superlink.socket = context.wrap_socket(superlink.socket, server_side=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"end": NOW - DAY / 2}, "certificate has expired; renew it"),
        ({"start": NOW + DAY / 2}, "not yet valid; is this machine's clock behind"),
        ({"address": "127.0.0.2"}, "--superlink must be a name or address that is in"),
    ],
)
def test_an_invalid_certificate(options, says, superlink, tmp_path):
    shown = issued(tmp_path, "server", **options)
    tls(superlink, shown)
    said = enter(superlink, NodeFolder(tmp_path / "node"), certificates=shown.path)
    assert says in said, said


def test_another_ca_and_the_right_one(superlink, tmp_path):
    shown, other = issued(tmp_path, "server"), issued(tmp_path, "other")
    tls(superlink, shown)
    node_folder = NodeFolder(tmp_path / "node")
    said = enter(superlink, node_folder, certificates=other.path)
    assert "--root-certificates must name the CA" in said, said
    assert not enter(superlink, node_folder, certificates=shown.path)


def test_a_server_without_tls(superlink, tmp_path):
    other = issued(tmp_path, "other")
    said = enter(superlink, NodeFolder(tmp_path / "node"), certificates=other.path)
    assert "does not speak TLS" in said, said


def test_a_refusal_gives_flowers_reason(superlink, tmp_path):
    fleet = FleetClient(superlink.address, NodeFolder(tmp_path).key(), insecure=True)
    superlink.faults["pull_messages"].append(500)
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse

    with pytest.raises(ServerRefusal) as error:
        fleet.call(PullMessagesRequest(), PullMessagesResponse)
    said = f"{superlink.address} answers 500: Internal Server Error"
    assert reason_of(error.value, fleet) == said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--superlink", "a"], "--superlink must be host:port, not a"),
        (["--superlink", "http://a:1"], "--superlink must be host:port"),
        (["--superlink", "a:65536"], "--superlink a:65536: a port is a number from 1 to 65535"),
        (["--insecure", "--root-certificates", "x"], "exclude each other"),
        (["--root-certificates", "x"], "--root-certificates x: No such file"),
        (["--auth-supernode-private-key", "x"], "x: No such file"),
        (["--auth-supernode-private-key", __file__], "is no private key"),
        (["--insecure", "--app", "edgewire"], "--app edgewire is no SHA-256"),
        (["--insecure", "--node-config", "a=b=c"], "--node-config: "),
        (["--insecure", "--state", "/dev/null/x"], "--state /dev/null/x cannot be used"),
    ],
)
def test_a_mistake_on_the_command_line_gives_one_line(words, says, tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(["--superlink", "127.0.0.1:1", "--state", str(tmp_path / "node"), *words])
    said = capsys.readouterr().err
    assert done.value.code == 2
    assert says in said.splitlines()[-1], said
