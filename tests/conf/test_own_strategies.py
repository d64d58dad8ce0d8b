"""A user's strategy class may pass options on to Flower's class; all options are checked."""

from dataclasses import replace

import pytest

from edgewire.conf.check import build, check_target
from edgewire.conf.schema import ConfigError
from edgewire.strategy.factory import made
from tests.runs import configured

OWN = """
from flwr.serverapp.strategy import FedAvg

class Own(FedAvg):
    def __init__(self, shout: bool = False, **options):
        super().__init__(**options)

class Further(Own):
    def __init__(self, *, often: int = 1, **options):
        super().__init__(**options)

class Alone(FedAvg):
    def __init__(self, codecs):
        super().__init__()
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
def own(tmp_path, monkeypatch):
    """Return a function that makes the group `strategy` for a class of a user's package."""
    (tmp_path / "own_strategies.py").write_text(OWN)
    (tmp_path / "own_annotated.py").write_text(ANNOTATED)
    monkeypatch.syspath_prepend(tmp_path)

    def node(name, **options):
        module = "own_strategies" if f"class {name}(" in OWN else "own_annotated"
        return {"_target_": f"{module}.{name}", **options}

    return node


@pytest.mark.parametrize("name", ["Own", "Further"])
def test_options_that_a_strategy_passes_on_reach_its_base_class(own, name):
    node = own(name, fraction_train=0.5, shout=True)
    check_target("strategy", node)
    assert build("strategy", node).fraction_train == 0.5


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ({"shout": 3}, "strategy.shout must be bool, not 3"),
        ({"often": "x"}, "strategy.often must be int"),
        ({"fraction_train": "x"}, "strategy.fraction_train must be float, not 'x'"),
        ({"fraction_train": float("nan")}, "finite"),
    ],
)
def test_the_types_of_passed_on_options_are_checked(own, option, part):
    with pytest.raises(ConfigError, match=part):
        check_target("strategy", own("Further", **option))


def test_a_strategy_that_compresses_itself_needs_its_own_check(own):
    config = replace(configured(), strategy=own("Alone", _partial_=True))
    with pytest.raises(ConfigError, match=r"Alone has no check_config\(config\): a strategy whose"):
        made(config)


def test_an_unknown_option_is_named(own):
    with pytest.raises(ConfigError, match="unexpected keyword argument 'bata'"):
        build("strategy", own("Own", bata=1))


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ({"rate": 1}, None),
        ({"rate": None}, None),
        ({"rate": "x"}, "strategy.rate must be float or null, not 'x'"),
        ({"alias": "x"}, "strategy.alias must be float or null, not 'x'"),
        ({"kind": "a"}, None),
        ({"any": 3}, None),
        ({"call": 3}, "strategy.call must be null, not 3"),
        ({"whole": 0.5}, "strategy.whole must be int, not 0.5"),
    ],
)
def test_annotations_written_as_text_are_read_in_their_module(own, option, line):
    if line is None:
        check_target("strategy", own("Plain", **option))
    else:
        with pytest.raises(ConfigError) as caught:
            check_target("strategy", own("Plain", **option))
        assert str(caught.value) == line


def test_unknown_types_are_not_checked_but_option_names_are(own):
    check_target("strategy", own("Unknown", thing=3, rate="x"))
    with pytest.raises(ConfigError, match=r"strategy\.thin is not an option .* strategy\.thing\?"):
        check_target("strategy", own("Unknown", thin=3))


def test_a_target_without_a_signature_accepts_any_option(own):
    check_target("strategy", own("Silent", rate="x"))
