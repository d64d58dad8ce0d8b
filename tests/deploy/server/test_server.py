"""The server's command line: options passed to Flower, and when the server refuses to listen."""

from importlib import import_module
from itertools import pairwise

import pytest
import uvicorn
from uvicorn.importer import import_from_string

from edgewire.deploy.certificates import make_ca, make_server
from edgewire.deploy.server import server
from edgewire.deploy.server.access import LocalOnly
from edgewire.deploy.server.connections import BoundedProtocol, bounded_loop
from edgewire.machine.errors import UsageError


def options(*words):
    return server.parser().parse_args([str(word) for word in words])


@pytest.fixture
def keys(tmp_path):
    make_ca(tmp_path)
    make_server(tmp_path, ["here.org"])
    return tmp_path


def test_tls_and_node_keys_are_the_default(keys):
    words = server.command_line(options("--keys", keys, "--state", keys))
    said = dict(pairwise(words))
    assert "--enable-supernode-auth" in words
    assert said["--ssl-ca-certfile"] == str(keys / "ca.crt")
    assert said["--ssl-certfile"] == str(keys / "server.crt")
    assert said["--ssl-keyfile"] == str(keys / "server.key")
    assert "--insecure" not in words


def test_a_key_that_does_not_fit_the_certificate_is_one_line(keys, capsys):
    (keys / "server.key").write_bytes((keys / "ca.key").read_bytes())
    assert server.main(["--keys", str(keys), "--state", str(keys / "state")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "server.crt and" in said
    assert "do not fit each other" in said


def test_without_certificates_the_error_names_the_command_that_makes_them(tmp_path, capsys):
    assert server.main(["--keys", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: there is no {tmp_path / 'ca.crt'}: `python -m edgewire.deploy.keys server "
        "NAME-OR-ADDRESS` makes it\n"
    )


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_without_encryption_the_server_listens_on_this_machine_only(host, local):
    asked = options("--insecure", "--host", host)
    if local:
        assert "--insecure" in server.command_line(asked)
    else:
        with pytest.raises(UsageError, match=r"goes with --host 127\.0\.0\.1"):
            server.command_line(asked)


DATABASE = "--database: this server's state is in memory, and in --state"
OPTIONS = {
    ("--database", "a.db"): DATABASE,
    ("--database=a.db",): DATABASE,
    ("--insecre",): "--insecre: neither this server nor Flower's has it; did you mean --insecure?",
    ("--x", "1"): "--x: neither this server nor Flower's has it; --help lists the options",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_without_meaning_is_one_line(words, capsys):
    assert server.main(["--insecure", "--host", "127.0.0.1", *words]) == 2
    assert capsys.readouterr().err == f"error: {OPTIONS[words]}\n"


def test_the_gate_is_the_first_middleware():
    first, *others = server.gated(options())
    assert first == (LocalOnly, {})
    names = ["Monitor", "SignedUploads", "BundleApi"]
    assert [each.__name__ for each, _ in others] == names
    assert others[-1][1]["enrolment"].nodes.name == "nodes.json"


def test_a_request_header_cannot_change_the_clients_address(tmp_path, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    found = server.environment(options("--state", tmp_path / "state"))
    assert found["FORWARDED_ALLOW_IPS"] == "127.0.0.1,::1"


def test_connections_stay_open_while_nodes_compute_and_pulls_do_not_delay_the_end(monkeypatch):
    kept = []
    monkeypatch.setattr(uvicorn, "run", lambda **options: kept.append(options))
    theirs = import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr(theirs, "flower_superlink", lambda: uvicorn.run(app=None))
    server.serve([])
    times = {"timeout_keep_alive": server.KEPT, "timeout_graceful_shutdown": server.ENDING}
    loop = kept[0].pop("loop")
    assert import_from_string(loop).func is bounded_loop
    assert kept == [{"app": None, **times, "http": BoundedProtocol, "ws": "none"}]


def test_a_second_server_on_one_state_is_refused_in_one_line(tmp_path, capsys):
    words = ["--insecure", "--host", "127.0.0.1", "--state", str(tmp_path / "state")]
    with server.locked(folder := tmp_path / "state", ""):
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "nodes.json").write_text("what the first one keeps")
        assert server.main(words) == 2
        assert capsys.readouterr().err == (
            f"error: another server runs on --state {folder}: stop it, or give each a folder of "
            "its own\n"
        )
    assert (folder / "nodes.json").read_text() == "what the first one keeps"
    server.locked(folder, "").close()  # the first server has ended


def test_a_state_path_that_is_no_folder_gives_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        words = ["--insecure", "--host", "127.0.0.1", "--state", str(tmp_path / name)]
        assert server.main(words) == 2
        assert "cannot be used: " in capsys.readouterr().err
