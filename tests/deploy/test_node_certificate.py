"""A node finds its certificate beside its key or beside the CA's, and uses no other."""

import shutil

import pytest

from edgewire.deploy import certificates, node
from edgewire.deploy.certificates import private_key
from edgewire.machine.errors import UsageError


@pytest.fixture
def keys(tmp_path):
    certificates.make_ca(tmp_path / "keys")
    for name in ("kitchen", "garden"):
        certificates.make_node(tmp_path / "keys", name)
    return tmp_path / "keys" / "nodes"


@pytest.fixture
def config(keys, tmp_path):
    """Return a function that returns the configuration of a node with these options."""

    def call(key, *options, **config):
        ca = ["--root-certificates", str(tmp_path / "keys" / "ca.crt")]
        words = ["--superlink", "here:1", "--state", str(tmp_path), *ca, *options]
        given = node.parser().parse_args(words)
        return node.with_certificate(given, private_key(key), {"a": 1, **config})

    return call


def test_the_certificate_of_a_key_is_used(config, keys, tmp_path, caplog):
    key = keys / "kitchen.key"
    option = "--auth-supernode-private-key", str(key)
    found = config(key, *option)
    assert found == {
        "a": 1, "secure-ca": str(tmp_path / "keys" / "ca.crt"), "secure-key": str(key),
        "secure-certificate": str(keys / "kitchen.crt"),
    }  # fmt: skip
    (keys / "kitchen.crt").rename(tmp_path / "keys" / "kitchen.crt")
    assert config(key, *option)["secure-certificate"] == str(tmp_path / "keys" / "kitchen.crt")
    assert config(key, *option, **{"secure-ca": ""}) == {"a": 1, "secure-ca": ""}
    shutil.copy(key, tmp_path / "key")  # the key that a node makes in its folder
    assert config(tmp_path / "key") == {"a": 1}
    shutil.copy(keys / "garden.crt", tmp_path / "key.crt")
    assert config(tmp_path / "key") == {"a": 1}
    assert f"{tmp_path / 'key.crt'} is of another key, and is not used" in caplog.text
    (tmp_path / "key.crt").write_text("damaged")
    with pytest.raises(UsageError, match=r"key\.crt is no certificate that can be read"):
        config(tmp_path / "key")


def test_a_node_without_tls_has_no_ca(keys, tmp_path):
    given = node.parser().parse_args(["--superlink", "here:1", "--state", str(tmp_path)])
    assert node.with_certificate(given, private_key(keys / "kitchen.key"), {"a": 1}) == {"a": 1}
