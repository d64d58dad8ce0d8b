"""What is read from an app's folder and from the command's arguments."""

import pytest
from flwr.common.config import get_fused_config_from_dir, parse_config_args

from edgewire.machine.errors import UsageError
from edgewire.simulation.any_app.app import read_app
from tests.simulation.any_app.apps import write

CONFIG = """
rounds = 3
rate = 0.5
name = "plain"
fast = false
[tool.flwr.app.config.model]
depth = 2
[tool.flwr.app.config.model.head]
width = 8
"""


@pytest.fixture
def app(tmp_path):
    return write(tmp_path / "toy", {}, "toy.server:app", "toy.client:app", CONFIG)


def test_an_app_is_read_from_its_folder(app):
    found = read_app(app, [])
    assert (found.name, found.version, found.folder) == ("somebody/toy", "1.2.3", app)
    assert (found.server_app, found.client_app) == ("toy.server:app", "toy.client:app")


@pytest.mark.parametrize(
    "words",
    [
        [],
        [""],
        ["rounds=5"],
        ["rounds=5 rate=1e-3 fast=true", 'name="two words"'],
        ["model.depth=7 model.head.width=9", "rounds=1", "rounds=2"],
        ["name='single' rate=1"],
    ],
)
def test_a_run_has_the_config_that_flower_gives_it(app, words):
    expected = get_fused_config_from_dir(app, parse_config_args(words))
    assert read_app(app, words).run_config == expected
    assert expected["model.head.width"] in (8, 9)


def test_a_toml_file_is_accepted(app, tmp_path):
    file = tmp_path / "more.toml"
    file.write_text("rate = 2.0\n[model.head]\nwidth = 1\n")
    config = read_app(app, [str(file)]).run_config
    assert (config["rate"], config["model.head.width"], config["model.depth"]) == (2.0, 1, 2)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["rouds=4"], "there is no rouds in [tool.flwr.app.config] of"),
        (["rouds=4"], "did you mean rounds?"),
        (["model=4"], "there is no model in"),
        (["rounds 4"], "cannot read 'rounds 4'"),
        (["rounds=4 rate"], "cannot read 'rate'"),
        (["name=plain"], "text needs quotes"),
        (["rate=[1,2]"], "needs to be of type"),
        (["/nowhere/config.toml"], "No such file or directory: '/nowhere/config.toml'"),
        (["rounds=3", "config.toml"], "cannot be passed alongside"),
        (["pyproject.toml"], "No such file or directory: 'pyproject.toml'"),
    ],
)
def test_impossible_options_are_refused_in_one_line(app, tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        read_app(app, words)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("[project]", "[project", "pyproject.toml: "),
        ('version = "1.2.3"', "", 'Property "version" missing in [project]'),
        ('publisher = "somebody"', "", 'Property "publisher" missing'),
        ('serverapp = "toy.server:app"', "", 'Property "serverapp" missing'),
        ('clientapp = "toy.client:app"', 'agentapp = "a:b"', "AgentApp"),
        ('"toy.server:app"', '"toy.server"', "Missing attribute in toy.server"),
        ('"toy.server:app"', "3", "pyproject.toml: "),
        ("rounds = 3", "rounds = [3]", "The value for key rounds needs to be"),
        ("[tool.flwr.app.components]", "[tool.other]", "Missing [tool.flwr.app.components]"),
    ],
)
def test_a_folder_without_an_app_is_refused_in_one_line(app, old, new, part):
    file = app / "pyproject.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_app(app, [])
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_folder_is_refused(app):
    for path, part in ((app / "x", "no folder"), (app / "pyproject.toml", "no folder")):
        with pytest.raises(UsageError, match=part):
            read_app(path, [])
    with pytest.raises(UsageError, match=r"no Flower app: there is no pyproject\.toml"):
        read_app(app.parent, [])
