"""Rounds of a secure sum among nodes with certificates: an active server can invent no node."""

from collections import defaultdict

import pytest
from flwr.app import Context

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.records import content_of, metadata_of, values_of
from edgewire.compression.flower.secure_messages import SECURE
from edgewire.compression.secure.certificates import OPTIONS, Credentials
from edgewire.deploy import certificates as made
from edgewire.deploy.certificates import certificate_file, node_files
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers import node_host
from tests.local_runs import local_run
from tests.runs import model_bytes, result_of
from tests.strategy.secure.test_rounds import MODES, RUN, dropping, sums

__all__ = ["sums"]


@pytest.fixture
def certified(monkeypatch, tmp_path):
    """Return a function that gives nodes of the local engine certificates of one CA."""
    keys, given = tmp_path / "keys", {}
    made.make_ca(keys)

    def context(*arguments, node_config, node_id, **options):
        config = node_config | given.get(node_id, {})
        return Context(*arguments, node_config=config, node_id=node_id, **options)

    def give(*nodes):
        for node in nodes:
            made.make_node(keys, name := f"node{node}")
            files = keys / "ca.crt", certificate_file(keys, name), node_files(keys, name)[0]
            given[node] = dict(zip(OPTIONS, map(str, files), strict=True))
        return given

    monkeypatch.setattr(node_host, "Context", context)
    return give


@pytest.fixture
def on_the_way(monkeypatch):
    """Return a function that lets a function see and change what the server sends and gets.

    It is called with "down" or "up", the type of the message, and the values for the sum.
    """
    push, pull = LocalGrid.push_messages, LocalGrid.pull_before

    def see(look, message, way):
        record = values_of(content_of(message)).get(SECURE)
        if record is not None:
            look(way, metadata_of(message)["_message_type"], values_of(record))

    def call(look):
        def pushing(self, messages, *rest):
            messages = [*messages]
            [see(look, each, "down") for each in messages]
            return push(self, messages, *rest)

        def pulling(self, *rest):
            replies = pull(self, *rest)
            [see(look, each, "up") for each in replies if not each.has_error()]
            return replies

        monkeypatch.setattr(LocalGrid, "push_messages", pushing)
        monkeypatch.setattr(LocalGrid, "pull_before", pulling)

    return call


@pytest.fixture
def sizes(on_the_way):
    """Return the bytes of certificates that are sent, by "up" and "down", for each message."""
    found = defaultdict(list)

    def look(way, kind, said):
        given = [said["certificate"]] if "certificate" in said else said.get("certificates", [])
        if given:
            found[way].append([len(each) for each in given])

    on_the_way(look)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_certificates_are_sent_once_and_change_nothing(mode, certified, sizes, tmp_path):
    local_run(tmp_path / "plain", *RUN, mode)
    assert not sizes
    certified(1, 2, 3, 4)
    local_run(tmp_path / "certified", *RUN, mode)
    assert model_bytes(tmp_path / "certified") == model_bytes(tmp_path / "plain")
    assert result_of(tmp_path / "certified")["failures"] == 0
    assert [len(each) for each in sizes["up"]] == [1] * 4
    assert [len(each) for each in sizes["down"]] == [4] * 4
    assert max(size for each in sizes["down"] for size in each) < 600


def test_a_node_that_dropped_out_is_certified_anew(certified, sizes, sums, monkeypatch, tmp_path):
    certified(1, 2, 3, 4)
    dropping(monkeypatch, "query.secure_shares", 2, {2})
    local_run(tmp_path, *RUN)
    assert sums == [4, 3, 4]
    assert [len(each) for each in sizes["up"]] == [1] * 5


OWN = bytes(range(32))  # a key that the server has made


def invented(said, run, files):
    """Replace the key of a node by one of the server's own."""
    said["keys"] = said["keys"][:-32] + OWN


def of_a_colluding_node(said, run, files):
    """Replace the key of a node by one that another node has signed for the server."""
    invented(said, run, files)
    said["certificates"][-1] = Credentials.of(files[1]).proof(run, OWN)


def signed_for_another_run(said, run, files):
    said["keys"] = said["keys"][:-32] + OWN
    said["certificates"][-1] = Credentials.of(files[4]).proof(run[::-1], OWN)


def without_certificates(said, run, files):
    del said["certificates"]


CHEATS = {
    invented: "has not signed this key",
    of_a_colluding_node: "two keys of the roster are of 'CN=node1'",
    signed_for_another_run: "has not signed this key",
    without_certificates: "a node has no certificate",
}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("mode", MODES)
def test_no_node_answers_a_server_that_cheats(mode, cheat, certified, on_the_way, tmp_path, caplog):
    files, run = certified(1, 2, 3, 4), []

    def look(way, kind, said):
        if (way, kind) == ("down", "query.secure_keys"):
            run.append(said["run"])
        elif way == "down" and "keys" in said:
            said["certificates"] = [*said["certificates"]]
            cheat(said, run[0], files)

    on_the_way(look)
    with pytest.raises(PayloadError, match="no update could be used"):
        local_run(tmp_path, *RUN, mode, "rounds=1")
    assert "round 1 has no sum" in caplog.text
    lines = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len([line for line in lines if CHEATS[cheat] in line]) == 4, lines


def test_a_certificate_that_is_too_long_is_not_passed_on(
    certified, on_the_way, sums, tmp_path, caplog
):
    certified(1, 2, 3, 4)
    seen = []

    def look(way, kind, said):
        if way == "up" and "certificate" in said and not seen:
            seen.append(said.update(certificate=bytes(5000)))

    on_the_way(look)
    local_run(tmp_path, *RUN)
    assert sums == [3, 4, 4]
    assert "a certificate of 5000 bytes is too long" in caplog.text


def test_a_node_without_a_certificate_does_not_end_the_sums_of_the_others(
    certified, sums, tmp_path, caplog
):
    certified(1, 2, 3)
    local_run(tmp_path / "most", *RUN)
    assert sums == [3] * 3
    assert "it has no certificate, and most nodes have" in caplog.text
    for each in (caplog, sums, certified()):
        each.clear()
    certified(4)
    local_run(tmp_path / "few", *RUN)
    assert sums == [3] * 3
    assert "a node has no certificate" in caplog.text
