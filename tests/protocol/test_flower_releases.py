"""Another Flower release gives a warning, or an error line that names the needed release.

`python -m tests.deploy.other_release` tries real releases; it is run by hand.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec, module_from_spec
from threading import Thread

import pytest
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers

from edgewire.deploy.server import node_registry, server
from edgewire.deploy.server.flower_api import expect, expect_handlers
from edgewire.machine.errors import UsageError
from edgewire.protocol import flower_releases
from edgewire.protocol.choose_grid import bundled


@pytest.fixture
def without(monkeypatch):
    """Return a function that makes modules impossible to import."""

    def call(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return call


def fresh(name):
    """Return a newly loaded copy of a module."""
    spec = find_spec(name)
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def gated(*words):
    return [kind.__name__ for kind, _ in server.gated(server.parser().parse_args(words))]


@pytest.mark.parametrize(
    "lost", ["edgewire.protocol.bundled_grid", "flwr.superlink.grid.http_grid"]
)
def test_a_server_app_goes_on_with_flowers_own_grid(lost, without, caplog):
    grid = HttpGrid.__new__(HttpGrid)
    without(lost)
    assert bundled(grid) is grid
    (said,) = caplog.messages
    assert said.startswith("no bundles, each object is sent by itself: ")


def test_a_serverapps_first_imports_use_no_internals_of_flower(without):
    inner = ["flwr.superlink", "flwr.supercore", "flwr.common", "flwr.proto"]
    without("edgewire.protocol.bundled_grid", *inner)
    assert callable(fresh("edgewire.protocol.choose_grid").bundled)


@pytest.mark.parametrize(
    "lost", ["edgewire.deploy.server.message_store", "flwr.superlink.routers.fleet.node_auth"]
)
def test_a_server_without_bundles_keeps_its_gate(lost, without, capsys, tmp_path):
    without("edgewire.deploy.server.api", lost)
    assert gated("--state", str(tmp_path)) == ["LocalOnly", "SignedUploads", "Registry"]
    assert capsys.readouterr().err.count("warning: this Flower is another: nodes poll") == 1


def test_handlers_with_another_signature(monkeypatch, capsys, tmp_path):
    expect_handlers()
    monkeypatch.setattr(fleet_handlers, "pull_messages", lambda request, context: None)
    with pytest.raises(ImportError, match="pull_messages is called otherwise in this release"):
        expect_handlers()
    assert gated("--state", str(tmp_path)) == ["LocalOnly", "SignedUploads", "Registry"]
    assert "pull_messages is called otherwise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "fits"),
    [(lambda a, b: 0, True), (lambda a: 0, False), (lambda a, b, c=0: 0, True), (None, False),
     (lambda a, b, *, c: 0, False), (lambda *all: 0, True)],
)  # fmt: skip
def test_functions_that_accept_two_arguments(function, fits):
    if fits:
        expect(function, "call", 2)
    else:
        with pytest.raises(ImportError, match="call is called otherwise"):
            expect(function, "call", 2)


def test_a_server_of_a_release_without_http(without, monkeypatch):
    without("flwr.superlink.routers.fleet")
    monkeypatch.setattr(server, "installed", lambda: "1.39.0")
    with pytest.raises(UsageError, match=r"\(1\.39\.0\) has no Fleet API over HTTP.*flwr>=1\.40"):
        gated()


def test_a_server_state_that_stores_nodes_differently(monkeypatch, caplog, tmp_path):
    file = tmp_path / "nodes.json"
    file.write_text("[]")
    passed = []

    async def app(scope, receive, send):
        passed.append(scope["type"])

    monkeypatch.setattr(node_registry, "state_of", lambda scope: object())
    wrapped = node_registry.Registry(app, file)
    for scope in ({"type": "lifespan"}, {"type": "http", "path": node_registry.CHANGING[0]}):
        with pytest.raises(StopIteration):
            wrapped(scope, None, None).send(None)
    assert passed == ["lifespan", "http"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert file.read_text() == "[]"


@pytest.mark.parametrize("lost", ["edgewire.deploy.device.node_loop", "flwr.common.config"])
def test_a_node_names_the_release_it_needs(lost, without, capsys, tmp_path):
    without(lost)
    with pytest.raises(SystemExit) as done:
        fresh("edgewire.deploy.node").main(["--superlink", "127.0.0.1:1", "--state", str(tmp_path)])
    assert done.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "does not go with it" in said
    assert said.endswith(f"`pip install '{flower_releases.WANTED}'`")


def test_without_flower_a_node_reports_that(monkeypatch):
    monkeypatch.setattr(flower_releases, "installed", lambda: "")
    said = flower_releases.lacking(ImportError("no flwr"))
    assert said == f"Flower is not installed: `pip install '{flower_releases.WANTED}'`"


@pytest.mark.parametrize(
    ("found", "known"),
    [("1.39.9", False), ("1.40.0", True), ("1.42.1", True), ("1.43.0", False), ("2.0", False),
     ("", False), ("1.41.0.dev20260101", True)],
)  # fmt: skip
def test_tried_releases_are_known(found, known):
    assert flower_releases.is_known(found) is known


@pytest.fixture
def superlink():
    """A fake SuperLink that reports the release `superlink.release`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.server.release.encode()
            self.send_response(200 if self.path == "/openapi.json" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.words = ["flwr-simulation", "--insecure", "--runtime-api-address",
                    f"127.0.0.1:{server.server_port}"]  # fmt: skip
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        ("1.42.0", '{"info": {"version": "1.41.0"}}', "1.41.0"),  # replaced while it ran
        ("1.41.2", '{"info": {"version": "1.41.2"}}', "1.41.2"),
        ("1.40.0", '{"info": {"version": "1.41.2"}}', "1.40.0"),
        ("1.42.0", '{"info": {"version": "1.42.3"}}', None),
        ("1.42.0", '{"info": {"version": "1.43.0"}}', None),
        ("1.42.0", "[]", None),
        ("1.42.0", "no JSON", None),
        ("1.41.0", "", "1.41.0"),
    ],
)
def test_a_superlink_of_an_older_flower_is_named(here, there, said, superlink, monkeypatch):
    monkeypatch.setattr(flower_releases, "installed", lambda: here)
    superlink.release = there
    line = flower_releases.older_superlink(superlink.words)
    if said is None:
        assert line is None
    else:
        assert f"of Flower {said}, older than 1.42" in line
        assert "pkill -f flower-superlink" in line
        assert "\n" not in line


@pytest.mark.parametrize("words", [["run.py"], ["x", "--runtime-api-address"],
                                   ["x", "--runtime-api-address", "127.0.0.1:1", "--insecure"],
                                   ["x", "--runtime-api-address", "no:no:no"]])  # fmt: skip
def test_without_an_answering_superlink_no_release_is_older(words, monkeypatch):
    monkeypatch.setattr(flower_releases, "installed", lambda: "1.42.0")
    assert flower_releases.older_superlink(words) is None
