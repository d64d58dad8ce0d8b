"""A run may use a class of an allowed package if it derives from its group's base class."""

import sys

import pytest

from conf import ConfigError, load_config
from conf.check import build
from tests.conf.hostile import plain, refused, submitted

OWN = """
import os
from os import system
from pathlib import Path
from subprocess import Popen
from collections.abc import Callable
from typing import Any, Protocol

from flwr.serverapp.strategy import FedAvg

Path(__file__).with_name("imported").touch()

class Mine(FedAvg):
    def __init__(self, shout: bool = False, **options):
        super().__init__(**options)

class _Hidden(FedAvg): ...

class Shaped(Protocol): ...

class Holder(FedAvg):
    def __init__(
        self,
        inner: FedAvg | None = None,
        anything: Any = None,
        thing: object = None,
        call: Callable[[], int] | None = None,
        shape: Shaped | None = None,
        nothing=None,
        either: dict | list[FedAvg] | None = None,
    ):
        super().__init__()
        self.inner = inner

class Other:
    def __init__(self, **options):
        Path(__file__).with_name("made").touch()

def make(**options):
    Path(__file__).with_name("made").touch()
    return FedAvg()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make a package; yield a function that returns the names of the files that its code wrote."""
    (tmp_path / "ownpackage").mkdir()
    (tmp_path / "ownpackage" / "__init__.py").write_text("")
    (tmp_path / "ownpackage" / "parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: {path.name for path in (tmp_path / "ownpackage").iterdir() if not path.suffix}
    for name in [name for name in sys.modules if name.partition(".")[0] == "ownpackage"]:
        del sys.modules[name]


def named(name, **options):
    return {**plain(), "strategy": {"_target_": name, **options}}


MINE = "ownpackage.parts.Mine"


@pytest.mark.parametrize(
    "allow", ["ownpackage", "ownpackage.parts", MINE, "other, ownpackage", f"x {MINE} y"]
)
def test_a_class_that_a_node_allows_is_built(package, allow):
    made = load_config(submitted(named(MINE, shout=True)), 2, {"allow": allow})
    assert build("strategy", made.strategy).fraction_train == 1.0


def test_a_class_that_the_environment_allows_is_built(package, monkeypatch):
    monkeypatch.setenv("EDGEWIRE_ALLOW", "ownpackage")
    assert load_config(submitted(named(MINE)), 2).strategy["_target_"] == MINE


@pytest.mark.parametrize(
    "allow",
    ["", "own", "ownpackag", "ownpackage.part", f"{MINE}r", "Mine", "*", ".", "ownpackage."],
)
def test_a_package_that_is_not_allowed_is_not_imported(package, allow):
    assert "allow=" in refused(named(MINE), {"allow": allow})
    assert package() == set()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ownpackage.parts.make", "is no class"),
        ("ownpackage.parts.Other", "is no Strategy"),
        ("ownpackage.parts.FedAvg", "is of flwr"),
        ("ownpackage.parts.Popen", "is of subprocess"),
        ("ownpackage.parts.Path", "is of pathlib"),
        ("ownpackage.parts.system", "is no class"),
        ("ownpackage.parts.os.system", "cannot be imported"),
        ("ownpackage.parts.Mine.start", "cannot be imported"),
        ("ownpackage.parts._Hidden", "allow="),
        ("ownpackage.parts.__builtins__", "allow="),
        ("ownpackage.gone.Mine", "cannot be imported"),
    ],
)
def test_only_an_allowed_packages_own_classes_of_the_right_base_are_built(package, name, why):
    assert why in refused(named(name), {"allow": "ownpackage"})
    assert "made" not in package()


@pytest.mark.parametrize("group", ["dataset", "model"])
@pytest.mark.parametrize("name", ["system", "Popen", "FedAvg"])
def test_data_and_model_are_not_what_an_allowed_package_only_imports(group, name, package):
    node = {**plain()[group], "_target_": f"ownpackage.parts.{name}", "command": "echo"}
    told = refused({**plain(), group: node}, {"allow": "ownpackage"})
    assert f"{group}._target_=ownpackage.parts.{name} is of " in told


@pytest.mark.parametrize("key", ["_args_", "_recursive_", "_convert_", "__init__", "_"])
def test_a_class_with_any_options_gets_no_keys_of_hydra(package, key):
    refused(named(MINE, **{key: [1]}), {"allow": "ownpackage"})


@pytest.mark.parametrize("name", ["anything", "thing", "call", "shape", "nothing", "either"])
def test_an_object_is_made_only_where_a_class_is_declared(package, name):
    node = {"_target_": "ownpackage.parts.Holder", name: {"_target_": MINE}}
    told = refused({**plain(), "strategy": node}, {"allow": "ownpackage"})
    assert f"strategy.{name}" in told
    node = {"_target_": "ownpackage.parts.Holder", "inner": {"_target_": MINE}}
    made = load_config(submitted({**plain(), "strategy": node}), 2, {"allow": "ownpackage"})
    assert type(build("strategy", made.strategy).inner).__name__ == "Mine"


def test_a_run_cannot_allow_anything_itself(package):
    for key in ("allow", "EDGEWIRE_ALLOW", "node_config"):
        refused({**named(MINE), key: "ownpackage"})
    values = {**submitted(named(MINE)), "allow": "ownpackage", "EDGEWIRE_ALLOW": "ownpackage"}
    with pytest.raises(ConfigError, match="allow="):
        load_config(values, 2)
    assert package() == set()
