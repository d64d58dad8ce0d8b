"""Nodes accept run keys of nodes that a CA has certified, each once, and no others."""

import datetime
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewire.compression.secure import SecureError
from edgewire.compression.secure.certificates import SIZE, Credentials, expect_holders
from edgewire.deploy import certificates as made
from edgewire.deploy.certificates import certificate_file, node_files

RUN, KEY = os.urandom(16), os.urandom(32)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Return a folder of keys with a CA, a server and two nodes."""
    folder = tmp_path_factory.mktemp("keys")
    made.make_ca(folder)
    made.make_server(folder, ["here"])
    for name in ("kitchen", "garden"):
        made.make_node(folder, name)
    return folder


@pytest.fixture
def copied(keys, tmp_path):
    return shutil.copytree(keys, tmp_path / "keys")


def node(keys, name="kitchen"):
    return Credentials(keys / "ca.crt", certificate_file(keys, name), node_files(keys, name)[0])


def with_certificate_of(proof, other):
    """Return a proof with the certificate of another proof."""
    shown, rest = (SIZE + int.from_bytes(each[:SIZE], "little") for each in (other, proof))
    return other[:shown] + proof[rest:]


def test_a_node_knows_the_others_by_their_certificates(keys):
    kitchen, garden = node(keys), node(keys, "garden")
    proof = garden.proof(RUN, KEY)
    assert len(proof) < 600
    holders = [kitchen.holder(kitchen.proof(RUN, KEY), RUN, KEY), kitchen.holder(proof, RUN, KEY)]
    assert [each.partition(" ")[2] for each in holders] == ["'CN=kitchen'", "'CN=garden'"]
    expect_holders(holders)
    with pytest.raises(SecureError, match="two keys of the roster are of 'CN=garden'"):
        expect_holders([*holders, kitchen.holder(garden.proof(RUN, RUN * 2), RUN, RUN * 2)])


def test_a_node_with_two_certificates_is_one_node(copied):
    before = node(copied, "garden")
    file = certificate_file(copied, "garden")
    first = file.read_bytes()
    made.certify_node(copied, "garden")
    assert file.read_bytes() != first
    again = node(copied, "garden")
    for file in node_files(copied, "garden"):
        file.rename(file.with_name(f"old-{file.name}"))
    made.make_node(copied, "garden")  # the key of a device that replaces the old one
    replaced = node(copied, "garden")
    for file in node_files(copied, "garden"):
        file.with_name(f"old-{file.name}").rename(file)
    shutil.move(node_files(copied, "garden")[1], node_files(copied, "shed")[1])
    made.certify_node(copied, "shed")  # the key of garden, by another name
    shed = Credentials(
        copied / "ca.crt", certificate_file(copied, "shed"), node_files(copied, "garden")[0]
    )
    holders = [
        again.holder(each.proof(RUN, KEY), RUN, KEY) for each in (before, again, shed, replaced)
    ]
    assert "" not in [each.partition(" ")[0] for each in holders]
    for other in holders[1:]:
        with pytest.raises(SecureError, match="two keys of the roster"):
            expect_holders([holders[0], other])


def of_another_ca(keys, folder):
    made.make_ca(folder)
    made.make_node(folder, "garden")
    return node(folder, "garden").proof(RUN, KEY)


def of_the_server(keys, folder):
    """The server has a certificate of the same CA."""
    files = keys / "ca.crt", keys / "server.crt", keys / "server.key"
    return Credentials(*files).proof(RUN, KEY)


def revoked(keys, folder):
    for name in ("garden", "kitchen"):
        made.revoke_certificate(keys, name)
    return node(keys, "garden").proof(RUN, KEY)


def of_a_ca_that_ended(keys, folder):
    proof = node(keys, "garden").proof(RUN, KEY)
    made.make_next_ca(keys)
    made.make_server(keys, ["here"], renew=True)
    made.drop_old_ca(keys)
    made.certify_node(keys, "kitchen")
    return proof


def expired(keys, folder, days=-1):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "CA_DAYS", days)
        if days > 0:
            patch.setattr(made, "EARLIER", datetime.timedelta(days=-1))
        made.certify_node(keys, "garden")
    return node(keys, "garden").proof(RUN, KEY)


REFUSED = {
    "has no certificate": lambda keys, folder: b"",
    "a node has no certificate": lambda keys, folder: bytes(5000),
    "cannot be read": lambda keys, folder: b"\xff\xff1",
    "'CN=garden' is not valid for this node's CA: 'validation failed: candidates": of_another_ca,
    "'CN=here' is not valid for this node's CA: 'validation failed: required EKU": of_the_server,
    "'CN=garden' is revoked": revoked,
    "'CN=garden' is not valid for this node's CA": of_a_ca_that_ended,
    "validation failed: cert is not valid at validation time": expired,
    "cert is not valid at validation time": lambda keys, folder: expired(keys, folder, 9),
    "'CN=garden' has not signed": lambda keys, folder: node(keys, "garden").proof(KEY[:16], KEY),
    "'CN=garden' has not signed this": lambda keys, folder: node(keys, "garden").proof(
        RUN, RUN * 2
    ),
    "'CN=garden' has not": lambda keys, folder: with_certificate_of(
        node(keys).proof(RUN, KEY), node(keys, "garden").proof(RUN, KEY)
    ),
}


@pytest.mark.parametrize("says", REFUSED)
def test_other_proofs_are_refused_in_one_line(says, copied, tmp_path):
    proof = REFUSED[says](copied, tmp_path / "other")
    with pytest.raises(SecureError) as found:
        expect_holders([node(copied).holder(proof, RUN, KEY)])
    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.fixture(scope="module")
def proof(keys):
    return node(keys, "garden").proof(RUN, KEY)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_damaged_proof_is_never_accepted(keys, proof, data):
    at, change = data.draw(st.integers(0, len(proof) - 1)), data.draw(st.integers(0, 255))
    damaged = proof[:at]  # which breaks off, or has another byte
    if change:
        damaged += bytes([proof[at] ^ change]) + proof[at + 1 :]
    holder = node(keys).holder(damaged, RUN, KEY)
    assert holder.startswith(" ")
    assert holder.isprintable()


def test_two_cas_are_accepted_while_one_follows_the_other(copied):
    before = node(copied, "garden").proof(RUN, KEY)
    made.make_next_ca(copied)
    made.certify_node(copied, "kitchen")
    kitchen = node(copied)
    expect_holders([kitchen.holder(each, RUN, KEY) for each in (before, kitchen.proof(RUN, KEY))])


WRONG = {
    "secure-certificate": "is of another key than secure-key",
    "secure-key": "No such file or directory",
    "secure-ca": "a file is damaged",
}


@pytest.mark.parametrize("option", WRONG)
def test_wrong_files_are_one_line_without_their_names(option, copied, tmp_path):
    files = {
        "secure-ca": copied / "ca.crt",
        "secure-certificate": certificate_file(copied, "kitchen"),
        "secure-key": node_files(copied, "kitchen")[0],
    }
    assert Credentials.of({}) is None
    assert Credentials.of({"secure-ca": "", "secure": 1}) is None
    assert Credentials.of(files) is not None
    with pytest.raises(SecureError, match="needs all of secure-ca, secure-certificate"):
        Credentials.of({name: file for name, file in files.items() if name != option})
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA")
    wrong = {
        "secure-certificate": certificate_file(copied, "garden"),
        "secure-key": tmp_path / "gone",
        "secure-ca": damaged,
    }
    with pytest.raises(SecureError, match=WRONG[option]) as found:
        Credentials.of(files | {option: wrong[option]})
    assert str(tmp_path) not in str(found.value)
    assert "PRIVATE" not in repr(vars(Credentials.of(files)))
