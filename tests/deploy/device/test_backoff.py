"""A waiting node logs one line that names the cause and the remedy."""

import datetime
import ipaddress
import re
import ssl

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse

from edgewire.deploy.device.backoff import WORTH_WAITING, reason_of
from edgewire.deploy.device.client import FleetClient, ServerRefusal
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.node import main
from tests.deploy.fake_superlink import FakeSuperLink

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
    path = folder / f"{name}.pem"
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
        reason = reason_of(error, fleet, member.known)
        assert "\n" not in reason
        return reason
    finally:
        fleet.close()
        node_folder.close()
    return ""


def test_a_key_that_is_not_registered_or_no_longer(superlink, tmp_path):
    for known in (False, True):
        said = enter(superlink, tmp_path, registers=False)
        assert "does not know this node's key: register it" in said
        assert ("online" in said) is not known
        assert not superlink.nodes
        assert not enter(superlink, tmp_path)
        superlink.nodes.clear()
        superlink.online.clear()


def test_an_earlier_process_of_the_node_that_is_still_online(superlink, tmp_path):
    assert not enter(superlink, tmp_path)
    (tmp_path / "node.json").unlink()  # the node forgets its id
    assert "counts an earlier life of this node as online" in enter(superlink, tmp_path)
    superlink.online.clear()
    assert not enter(superlink, tmp_path)


def registered_keys_only(superlink):
    superlink.registers = False


def clock(ahead):
    def shift(superlink):
        superlink.clock = ahead
        superlink.faults["activate_node"].append(401)

    return shift


def another(superlink):
    superlink.faults["register_node"].append(404)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (registered_keys_only, "--auth-supernode-private-key"),
        (clock(400.3), "clock is (400|401) s ahead of"),
        (clock(-399.7), "clock is (399|400|401) s behind"),
        (clock(8.3), "clock is [89] s ahead"),
        (clock(0.0), "^(?!.*clock).*signature"),
        (another, "does not serve Flower's Fleet API"),
        (FakeSuperLink.stop, r"is not reached: \[Errno 111\] Connection refused"),
    ],
)
def test_a_servers_refusal_names_its_cause(change, says, superlink, tmp_path):
    change(superlink)
    said = enter(superlink, tmp_path)
    assert re.search(says, said), said


def test_an_unknown_host_name(tmp_path):
    fleet = FleetClient("nowhere.invalid:1", NodeFolder(tmp_path).key(), insecure=True)
    with pytest.raises(httpx.TransportError) as error:
        fleet.bundles()
    assert "nowhere.invalid:1 is not reached: " in reason_of(error.value, fleet)


def tls(superlink, shown):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, shown.with_suffix(".key"))
    superlink.socket = context.wrap_socket(superlink.socket, server_side=True)


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
    if options is not None:
        tls(superlink, issued(tmp_path, "server", **options))
    if trusted == "other":
        issued(tmp_path, "other")
    said = enter(superlink, tmp_path / "node", certificates=tmp_path / f"{trusted}.pem")
    assert says in said, said
    assert bool(said) is bool(says)


def test_a_refusal_gives_flowers_reason(superlink, tmp_path):
    fleet = FleetClient(superlink.address, NodeFolder(tmp_path).key(), insecure=True)
    superlink.faults["pull_messages"].append(500)
    with pytest.raises(ServerRefusal) as error:
        fleet.call(PullMessagesRequest(), PullMessagesResponse)
    said = f"{superlink.address} answers 500: Internal Server Error"
    assert reason_of(error.value, fleet) == said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--superlink", "a"], "--superlink a: give HOST:PORT, as in 127.0.0.1:8000"),
        (["--superlink", "::1:8000"], "in brackets, as --superlink [::1]:8000"),
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
