"""The CA changes while a server runs: which clients accept its certificate at each step."""

import shutil
import ssl

import httpx
import pytest

from edgewire.deploy import certificates, keys
from edgewire.deploy.certificates import private_key
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.server import certificate_file
from tests.deploy.processes import eventually
from tests.deploy.served import Server


@pytest.fixture
def tool(tmp_path, capsys):
    def call(*words):
        code = keys.main(["--keys", str(tmp_path / "keys"), *words])
        said = capsys.readouterr()
        return code, said.err if code else said.out.splitlines()

    return call


def test_each_client_accepts_the_server_until_its_ca_is_dropped(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(certificate_file, "LOOKS", 0.05)
    folder = tmp_path / "keys"
    ca, before = folder / "ca.crt", tmp_path / "before.crt"
    tool("server", "127.0.0.1")
    tool("node", "kitchen")
    shutil.copy(ca, before)
    with Server(keys=folder) as server:

        def accepts(*files):
            """Return the files of CAs with which a client accepts the server."""
            found = []
            for file in files:
                tls = ssl.create_default_context(cafile=file)
                tls.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
                try:
                    httpx.get(f"https://{server.address}/v1/fleet/edgewire", verify=tls)
                    found.append(file)
                except httpx.ConnectError:
                    continue
            return found

        def renewed():
            shown = ssl.get_server_certificate(server.place)
            assert tool("server", "--renew", "127.0.0.1")[0] == 0
            eventually(lambda: ssl.get_server_certificate(server.place) != shown, 20)

        node = copied(before, tmp_path / "node.crt")
        key = private_key(folder / "nodes" / "kitchen.key")
        fleet = FleetClient(server.address, key, root_certificates=node)

        assert tool("ca", "--drop-old")[0] == 0  # there is one CA: nothing changes
        assert ca.read_bytes() == before.read_bytes()
        code, made = tool("ca")
        assert code == 0
        old_key = next(folder.glob("ca.old-*.key"))
        assert sorted(line.split("/")[-1] for line in made) == sorted(
            [old_key.name, "ca.crt", "ca.key", "cross.crt"]
        )
        assert private_key(old_key) != private_key(folder / "ca.key")
        both = copied(ca, tmp_path / "both.crt")
        assert ca.read_bytes().endswith(before.read_bytes())
        assert accepts(before, both) == [before, both]  # with the old certificate
        assert tool("ca") == (
            2,
            "error: there are two CAs already: `ca --drop-old` ends the old one\n",
        )
        code, said = tool("ca", "--drop-old")
        assert (code, "first `server --renew NAME`" in said) == (2, True)
        renewed()
        assert tool("ca", "--drop-old")[0] == 0
        after = copied(ca, tmp_path / "after.crt")
        assert both.read_bytes().startswith(after.read_bytes())
        assert accepts(before, both, after) == [before, both, after]  # by the cross certificate
        assert fleet.bundles()
        renewed()  # without the cross certificate
        assert accepts(before, both, after) == [both, after]

        fleet = FleetClient(server.address, key, root_certificates=node)
        with pytest.raises(httpx.ConnectError):
            fleet.bundles()
        fleet.reload_root()
        with pytest.raises(httpx.ConnectError):
            fleet.bundles()
        shutil.copy(after, node)
        fleet.reload_root()
        assert fleet.bundles()
        node.write_text("damaged")
        fleet.reload_root()
        assert fleet.bundles()
        fleet.close()


def copied(file, target):
    return shutil.copy(file, target)


def test_the_doctor_knows_both_cas(tool, tmp_path, look, monkeypatch):
    """Two CAs of one day have one line."""
    folder, days = tmp_path / "keys", certificates.CA_DAYS
    renew = ["server", "--renew", "here"]
    steps = [(["server", "here"], days, 2), (["ca"], days, 2), (renew, days, 2)]
    steps += [(["ca", "--drop-old"], days, 2), (["ca"], 900, 3), (renew, 900, 3)]
    for words, life, lines in steps:
        monkeypatch.setattr(certificates, "CA_DAYS", life)
        assert tool(*words)[0] == 0
        _, found = look("--server", "--keys", folder)
        assert [level for level, _ in found["certificate"]] == ["ok"] * lines
