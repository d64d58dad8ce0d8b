"""Classes of the user's own: all their options are checked, and a node allows only some.

A submitted run may use a class of an allowed package if it derives from its group's base class. A
user's class may pass options on to its base class.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgewire.conf.check import build, check_target
from edgewire.conf.load import load_config
from edgewire.conf.schema import ConfigError
from edgewire.strategy.factory import made
from tests.conf.hostile import plain, refused, submitted
from tests.runs import configured

OWN = """
import os
from functools import lru_cache, partial
from numpy import savetxt
from os import system
from pathlib import Path
from subprocess import Popen
from collections.abc import Callable
from typing import Any, Protocol

import torch
from flwr.serverapp.strategy import FedAvg

Path(__file__).with_name("imported").touch()

class Mine(FedAvg):
    def __init__(self, shout: bool = False, **options):
        super().__init__(**options)

class Further(Mine):
    def __init__(self, *, often: int = 1, **options):
        super().__init__(**options)

class Alone(FedAvg):
    def __init__(self, codecs):
        super().__init__()

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

@torch.no_grad()
def decorated(**options): ...

class Factory:
    def __call__(self, **options): ...

class Inherits(partial): ...

factory, module, inherits = Factory(), torch.nn.ReLU(), Inherits(savetxt)
given, bound, cached = partial(savetxt, "x"), Path(__file__).write_text, lru_cache(make)
renamed, nameless = torch.save, lambda **options: None
nameless.__module__ = None
slot = savetxt.__call__
"""


ANNOTATED = """
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Optional

from flwr.serverapp.strategy import Strategy

if TYPE_CHECKING:
    from somewhere import Thing

Number = Optional[float]

class Plain(Strategy):
    def __init__(
        self,
        rate: float | None = None,
        alias: Number = None,
        kind: Literal["a", "b"] | None = None,
        any: Any | None = None,
        call: Callable[[int], str] | None = None,
        whole: int = 0,
    ) -> None: ...

class Unknown(Strategy):
    def __init__(self, thing: Thing | None = None, rate: float = 0.1) -> None: ...

class Silent(Strategy):
    __signature__ = "it does not say"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make a package; yield a function that returns the names of the files that its code wrote."""
    (tmp_path / "ownpackage").mkdir()
    (tmp_path / "ownpackage" / "__init__.py").write_text("")
    (tmp_path / "ownpackage" / "parts.py").write_text(OWN)
    (tmp_path / "ownpackage" / "annotated.py").write_text(ANNOTATED)
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
        (
            "ownpackage.parts.FedAvg",
            "is of flwr.serverapp.strategy.fedavg: give strategy._target_=",
        ),
        ("ownpackage.parts.FedAvg", "_target_=flwr.serverapp.strategy.fedavg.FedAvg"),
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


OTHERS = ["savetxt", "given", "bound", "cached", "module", "inherits", "slot"]


@pytest.mark.parametrize("group", ["dataset", "model"])
@pytest.mark.parametrize("name", [*OTHERS, "renamed", "nameless", "system", "FedAvg"])
def test_a_submitted_run_calls_no_object_that_the_package_does_not_define(group, name, package):
    """One's own command may name an object of one's own module, such as `Compose([...])`."""
    target = f"ownpackage.parts.{name}"
    told = refused(
        {**plain(), group: {**plain()[group], "_target_": target}}, {"allow": "ownpackage"}
    )
    assert f"{group}._target_={target} is of " in told
    if name in OTHERS:
        assert callable(check_target(group, {"_target_": target}).make)


@pytest.mark.parametrize("name", ["make", "decorated", "factory", "Other", "Mine"])
def test_a_submitted_run_calls_what_the_package_defines(name, package):
    node = {**plain()["model"], "_target_": f"ownpackage.parts.{name}"}
    made = load_config(submitted({**plain(), "model": node}), 2, {"allow": "ownpackage"})
    assert made.model.own["_target_"] == f"ownpackage.parts.{name}"


def test_a_function_that_claims_the_packages_name_is_refused(package, monkeypatch):
    """`for each in __all__: each.__module__ = __name__` also renames what is only imported."""
    monkeypatch.setattr(torch.save, "__module__", "ownpackage.parts")
    node = {**plain()["model"], "_target_": "ownpackage.parts.renamed"}
    assert "is of torch" in refused({**plain(), "model": node}, {"allow": "ownpackage"})


@pytest.mark.parametrize("group", ["strategy", "model", "partition"])
def test_the_reason_of_a_failed_import_is_told_to_ones_own_command_only(group, package, caplog):
    (Path(sys.path[0]) / "ownpackage" / "broken.py").write_text("raise OSError('/home/me')\n")
    node = {**plain()[group], "_target_": "ownpackage.broken.Mine"}
    with pytest.raises(ConfigError, match=r"cannot be imported: OSError: /home/me"):
        check_target(group, node)
    if group != "partition":  # a node looks for it only when it partitions data
        told = refused({**plain(), group: node}, {"allow": "ownpackage"})
        assert "cannot be imported: OSError; this machine's own log says more" in told
        assert "/home/me" not in told
        assert "/home/me" in caplog.text


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


def own(name, **options):
    """Return the group `strategy` for a class of the package."""
    module = "annotated" if f"class {name}(" in ANNOTATED else "parts"
    return {"_target_": f"ownpackage.{module}.{name}", **options}


@pytest.mark.parametrize("name", ["Mine", "Further"])
def test_options_that_a_strategy_passes_on_reach_its_base_class(package, name):
    node = own(name, fraction_train=0.5, shout=True)
    check_target("strategy", node)
    assert build("strategy", node).fraction_train == 0.5


@pytest.mark.parametrize(
    ("name", "option", "line"),
    [
        ("Further", {"shout": 3}, "strategy.shout must be bool, not 3"),
        ("Further", {"often": "x"}, "strategy.often must be int, not 'x'"),
        ("Further", {"fraction_train": "x"}, "strategy.fraction_train must be float, not 'x'"),
        ("Further", {"fraction_train": float("nan")}, "strategy.fraction_train must be a finite"),
        # annotations that are written as text are read in their module
        ("Plain", {"rate": 1}, None),
        ("Plain", {"rate": None}, None),
        ("Plain", {"rate": "x"}, "strategy.rate must be float or null, not 'x'"),
        ("Plain", {"alias": "x"}, "strategy.alias must be float or null, not 'x'"),
        ("Plain", {"kind": "a"}, None),
        ("Plain", {"any": 3}, None),
        ("Plain", {"call": 3}, "strategy.call must be null, not 3"),
        ("Plain", {"whole": 0.5}, "strategy.whole must be int, not 0.5"),
        # an unknown type is not checked, nor a class without a signature
        ("Unknown", {"thing": 3, "rate": "x"}, None),
        ("Unknown", {"thin": 3}, "strategy.thin is not an option of ownpackage.annotated.Unknown; "
         "did you mean strategy.thing?"),
        ("Silent", {"rate": "x"}, None),
    ],
)  # fmt: skip
def test_the_types_of_options_are_checked(package, name, option, line):
    if line is None:
        check_target("strategy", own(name, **option))
        return
    with pytest.raises(ConfigError) as caught:
        check_target("strategy", own(name, **option))
    assert str(caught.value).startswith(line)


def test_an_unknown_option_of_a_class_that_passes_options_on_is_named(package):
    with pytest.raises(ConfigError, match="unexpected keyword argument 'bata'"):
        build("strategy", own("Mine", bata=1))


def test_a_strategy_that_compresses_itself_needs_its_own_check(package):
    config = replace(configured(), strategy=own("Alone", _partial_=True))
    with pytest.raises(ConfigError, match=r"Alone has no check_config\(config\): a strategy whose"):
        made(config)
