"""Another Flower release is an error line that names the needed one; runs go on without bundles."""

import sys
from importlib.util import find_spec, module_from_spec

import pytest
from flwr.superlink.grid.http_grid import HttpGrid

from edgewire.deploy.server import server
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


def test_a_server_of_another_release_does_not_start(monkeypatch, capsys):
    monkeypatch.setattr(server, "installed", lambda: "1.43.0")
    assert server.main(["--insecure", "--host", "127.0.0.1"]) == 2
    said = f"error: not tried with Flower 1.43.0: `pip install '{flower_releases.WANTED}'`\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("lost", ["edgewire.deploy.device.node_loop", "flwr.common.config"])
def test_a_node_names_the_release_it_needs(lost, without):
    without(lost)
    wanted = f"does not go with it .*: `pip install '{flower_releases.WANTED}'`"
    with pytest.raises(SystemExit, match=wanted):
        fresh("edgewire.deploy.node")


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
