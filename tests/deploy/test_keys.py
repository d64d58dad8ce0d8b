"""Keys and certificates: which files are made or never overwritten, which nodes may take part."""

import errno
import os
import ssl
import stat
import sys

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key

from edgewire.deploy import keys
from edgewire.deploy.certificates import certificate_in, names_in, private_key
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.server.node_registry import load
from edgewire.engines.control import bundle
from edgewire.machine.errors import UsageError
from tests.deploy.served import Server
from tests.runs import ROOT


@pytest.fixture
def tool(tmp_path, capsys):
    """Return a function that runs the command; it returns (exit code, output lines, error text)."""

    def call(*words):
        code = keys.main(["--keys", str(tmp_path / "keys"), *words])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return call


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_ca_a_server_and_nodes(tool, tmp_path):
    folder = tmp_path / "keys"
    names = ("my.server.org", "192.0.2.5", "2001:db8::7")
    code, lines, _ = tool("server", *names, "--keys", str(folder))  # also after the command
    assert code == 0
    assert lines == [f"made {folder / n}" for n in ("ca.key", "ca.crt", "server.key", "server.crt")]
    assert tool("node", "kitchen")[0] == 0
    for path in (folder, folder / "nodes"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in folder.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"my.server.org", "localhost"}
    found = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert found == {"192.0.2.5", "2001:db8::7", "127.0.0.1", "::1"}


def test_flower_accepts_a_nodes_key(tool, tmp_path):
    tool("node", "kitchen")
    folder = tmp_path / "keys" / "nodes"
    private = load_ssh_private_key((folder / "kitchen.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert try_load_public_key(folder / "kitchen.pub").startswith(b"-----BEGIN PUBLIC KEY")


@pytest.mark.parametrize(
    "words", [["server", "other"], ["node", "a"], ["node", "b", "a"], ["server", "--renew", "1.2"]]
)
def test_no_existing_file_is_overwritten(tool, tmp_path, words):
    tool("server", "here")
    tool("node", "a")
    before = content(tmp_path)
    code, lines, error = tool(*words)
    assert (code, lines, error.count("\n")) == (2, [], 1)
    assert content(tmp_path) == before


def test_a_certificate_is_renewed_for_the_same_key(tool, tmp_path):
    tool("server", "here")
    before = content(tmp_path)
    assert tool("server", "--renew", "there")[0] == 0
    changed = {path.name for path, old in before.items() if path.read_bytes() != old}
    assert changed == {"server.crt"}


def test_a_node_gets_a_certificate_where_the_cas_key_is(tool, tmp_path):
    folder, file = tmp_path / "keys", tmp_path / "keys" / "nodes" / "kitchen.crt"
    tool("server", "here")
    kept = (folder / "ca.key").rename(tmp_path / "ca.key")
    assert tool("node", "kitchen")[0] == 0
    assert not file.exists()
    code, lines, error = tool("node", "--renew", "kitchen")
    assert (code, lines, error.count("\n")) == (2, [], 1)
    assert "ca.key: No such file" in error
    kept.rename(folder / "ca.key")
    assert tool("node", "--renew", "kitchen")[:2] == (0, [f"made {file}"])
    (folder / "nodes" / "kitchen.key").unlink()  # as of a device that has made its own key
    first = certificate_in(file)
    assert tool("node", "--renew", "kitchen")[0] == 0
    assert certificate_in(file).public_key() == first.public_key()
    assert certificate_in(file).serial_number != first.serial_number
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    code, _, error = tool("node", "--renew", "garden")
    assert (code, error.count("\n")) == (2, 1)


def test_a_certificate_is_revoked_where_the_cas_key_is(tool, tmp_path):
    folder = tmp_path / "keys"
    tool("server", "here")
    tool("node", "kitchen", "garden")
    numbers = [certificate_in(folder / "nodes" / f"{n}.crt").serial_number
               for n in ("kitchen", "garden")]  # fmt: skip
    with Server(keys=folder, nodes=tmp_path / "nodes.json") as server:
        there = ["--superlink", server.address]
        tool(*there, "register", "kitchen", "garden")
        kept = (folder / "ca.key").rename(tmp_path / "ca.key")
        stays = "the certificate of kitchen stays valid: put ca.key back, and call again"
        assert tool(*there, "revoke", "kitchen")[1] == ["revoked kitchen", stays]
        kept.rename(folder / "ca.key")
        made = f"made {folder / 'ca.crl'}: copy it to the devices"
        assert tool(*there, "revoke", "kitchen")[1] == [made]
        assert tool(*there, "revoke", "garden")[1] == ["revoked garden", made]
    listed = x509.load_pem_x509_crl((folder / "ca.crl").read_bytes())
    assert {each.serial_number for each in listed} == set(numbers)
    assert listed.is_signature_valid(certificate_in(folder / "ca.crt").public_key())


NO_NODES = ["../x", "", "a/b", ".hidden", "a b"]
NO_SERVERS = ["1.2.3", "a_b!", "http://x", "a b", "x:8000"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((["node", name], "is no name for a node") for name in NO_NODES),
        *((["server", name], "is no name or address") for name in NO_SERVERS),
        (["node", "-kitchen"], "-kitchen is no option, and a name begins with no -"),
        (["register", "kitchen", "--garden"], "--garden is no option, and a name begins with no -"),
        (["server", "-there"], "-there is no option"),
        (["node", "--", "-kitchen"], "'-kitchen' is no name for a node"),
        (["revoke"], "give one name, or several"),
    ],
)
def test_an_invalid_name_gives_one_line(tool, tmp_path, words, says):
    code, lines, said = tool(*words)
    assert (code, lines) == (2, [])
    assert says in said
    assert said.count("\n") == 1
    assert content(tmp_path) == {} or says == "is no name or address"  # the CA exists then


def test_nodes_are_registered_and_revoked(tool, tmp_path):
    tool("server", "here")
    tool("node", "kitchen", "garden")
    with Server(keys=tmp_path / "keys", nodes=tmp_path / "nodes.json") as server:
        there = ["--superlink", server.address]
        trusted = ssl.create_default_context(cafile=tmp_path / "keys" / "ca.crt")
        trusted.verify_flags |= ssl.VERIFY_X509_STRICT
        assert httpx.get(f"https://{server.address}/health", verify=trusted).is_success
        assert tool(*there, "list")[1] == ["no node is registered"]
        _, (line,), _ = tool(*there, "register", "kitchen")
        number = line.removeprefix("registered kitchen as node ")
        assert number.isdecimal()
        assert tool(*there, "register", "kitchen", "garden")[1][0] == (
            f"kitchen is registered already, as node {number}"
        )
        (tmp_path / "keys" / "nodes" / "kitchen.pub").rename(away := tmp_path / "kitchen.pub")
        (line,) = tool(*there, "register", "kitchen")[1]  # as a node that enrolled itself
        assert line == f"kitchen is registered already, as node {number}, by its own key"
        away.rename(tmp_path / "keys" / "nodes" / "kitchen.pub")
        assert [line.split()[::2] for line in tool(*there, "list")[1]] == [
            ["garden", "registered"], ["kitchen", "registered"]
        ]  # fmt: skip
        assert tool(*there, "revoke", number)[1] == [
            "revoked kitchen", f"made {tmp_path / 'keys' / 'ca.crl'}: copy it to the devices"
        ]  # fmt: skip
        assert [line.split()[0] for line in tool(*there, "list")[1]] == ["garden"]
        code, _, error = tool(*there, "revoke", "shed")
        assert (code, error) == (2, "error: no node shed is registered: list says who is\n")
        code, _, error = tool(*there, "--insecure", "list")
        assert code == 1
        assert "if it has TLS, give --keys: " in error
        tool(*there, "register", "kitchen")
        tool(*there, "revoke", "garden")  # writing the file again forgets no key
        key = private_key(tmp_path / "keys" / "nodes" / "kitchen.key")
        fleet = FleetClient(server.address, key, root_certificates=tmp_path / "keys" / "ca.crt")
        member = Membership(fleet, NodeFolder(tmp_path / "node"), registers=False)
        member.enter()
        assert (member.ask(), member.name) == (int(number), "kitchen")
        member.leave()
        fleet.close()


def test_registered_nodes_outlive_the_server(tool, tmp_path):
    tool("server", "here")
    tool("node", "kitchen", "garden")
    file, seen = tmp_path / "nodes.json", []
    for words in (["register", "kitchen", "garden"], ["revoke", "garden"], ["list"]):
        with Server(keys=tmp_path / "keys", nodes=file) as server:
            assert tool("--superlink", server.address, *words)[0] == 0
            seen.append(tool("--superlink", server.address, "list")[1])
    first, second, third = seen
    assert len(first) == 2
    assert second == third == [line for line in first if line.startswith("kitchen ")]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "[1]", '[{"nodeId": "x"}]', "[", '{"a": 1}'])
def test_a_damaged_file_of_nodes_gives_one_line(tmp_path, text):
    file = tmp_path / "nodes.json"
    assert load(file) == []
    file.write_text(text)
    with pytest.raises(UsageError, match="damaged: move it away"):
        load(file)


def test_without_a_superlink_the_error_is_one_line(tool):
    tool("server", "here")
    code, _, error = tool("--superlink", "127.0.0.1:9", "list")
    assert (code, error.count("\n")) == (1, 1)
    assert "no SuperLink answers at 127.0.0.1:9" in error


def test_the_app_command_prints_the_hash_of_an_app_with_packages(tool, tmp_path, monkeypatch):
    plain = bundle(ROOT, {}).hash_str
    assert tool("app") == (0, [plain], "")
    (tmp_path / "keys_package.py").write_text("raise RuntimeError('it is not imported')")
    monkeypatch.setenv("EDGEWIRE_PACKAGES", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    code, lines, _ = tool("app", "keys_package")
    app = bundle(ROOT, {}, {"keys_package.py": tmp_path / "keys_package.py"})
    assert code == 0
    assert lines == [app.hash_str]
    assert app.hash_str != plain
    code, _, error = tool("app", "keys_packages")
    assert (code, error.count("\n")) == (2, 1)
    assert "there is no keys_packages here" in error


@pytest.mark.parametrize("missing", ["ca.key", "ca.crt"])
def test_a_ca_of_which_a_file_is_elsewhere_makes_nothing(tool, tmp_path, missing):
    tool("server", "here.org")
    before = content(tmp_path)
    (file,) = tmp_path.rglob(missing)
    kept = file.rename(tmp_path / "elsewhere")
    code, _, error = tool("server", "--renew", "here.org")
    assert (code, error.count("\n")) == (2, 1)
    assert f"{missing} is not there: put it back" in error
    kept.rename(file)
    assert content(tmp_path) == before


def test_a_key_of_another_ca_signs_nothing_and_a_renewed_certificate_keeps_its_names(
    tool, tmp_path
):
    tool("server", "here.org")
    (key,) = tmp_path.rglob("ca.key")
    own = key.read_bytes()
    key.write_bytes((key.parent / "server.key").read_bytes())
    code, _, error = tool("server", "--renew", "here.org")
    assert code == 2
    assert "ca.key is not the key of" in error
    key.write_bytes(own)
    assert tool("server", "--renew", "there.org")[0] == 0
    names = [str(each.value) for each in names_in(certificate_in(key.parent / "server.crt"))]
    assert {"here.org", "there.org", "localhost"} < {*names}
    assert names[0] == "there.org"
    assert len({*names}) == len(names)


@pytest.mark.parametrize("words", [["ca"], ["node", "kitchen"], ["server", "--renew", "here"]])
def test_a_full_disk_changes_no_file(tool, tmp_path, words, monkeypatch):
    assert tool("server", "here")[0] == 0
    before = content(tmp_path)
    for number in range(9):  # the disk is full at each of the files that the command writes
        with monkeypatch.context() as patch:
            room = iter([None] * number)

            def full(handle, room=room):
                if next(room, handle) is not None:
                    raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(os, "fsync", full)
            code, _, said = tool(*words)
        if code == 0:
            break
        assert (code, "No space left on device" in said) == (2, True)
        assert content(tmp_path) == before
    assert number
