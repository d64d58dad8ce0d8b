"""`network_named(NAME)` is what `network=NAME` selects; values out of bounds are refused."""

import math
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.conf.network import FOLDER, DeviceClass, Network, network_named, only_virtual
from tests.runs import configured

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NUMBERS = [field.name for field in fields(Network) if "float" in str(field.type)]
NO_LIMIT = {"up_mbps", "down_mbps", "server_mbps", "rejoin_seconds"}
SHARES = {"loss", "crash"}


@pytest.mark.parametrize("name", NAMES)
def test_the_network_of_a_name(name):
    network = configured(f"network={name}").network
    assert asdict(network_named(name)) == asdict(network)
    said = only_virtual(network)
    assert (said == "") == (name == "ideal")
    assert name == "ideal" or ": give network" in said


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="there is no network isdn; there are: adsl, cable, clas"):
        network_named("isdn")


@given(name=st.sampled_from(NUMBERS), value=st.floats() | st.sampled_from(["1", None, [1]]))
def test_a_number_is_taken_within_its_bounds_and_refused_in_one_line_outside(name, value):
    number = isinstance(value, float) and math.isfinite(value)
    fits = (value is None and name in NO_LIMIT) or (
        number
        and (value > 0 if name in NO_LIMIT else value >= 0)
        and (value < 1 or name not in SHARES)
    )
    if fits:
        assert getattr(Network(**{name: value}), name) == value
        return
    with pytest.raises(ValueError, match=rf"^network\.{name} must be .*, not ") as refused:
        Network(**{name: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"up_mbps": True}, "network.up_mbps must be a number above 0, not True"),
        ({"classes": None}, "network.classes must be device classes by name"),
        ({"classes": {"a": {"share": 1}}}, "network.classes must be device classes by name"),
        ({"waiting": "long"}, "network.waiting must be one of none, uniform, exponential, fixed"),
        ({"classes": {"one": DeviceClass(0.5)}}, "shares of network.classes must add up to 1"),
        ({"classes": {"slow": DeviceClass(share=0)}}, "classes.slow.share must be a number above"),
        ({"classes": {"slow": DeviceClass(speed=-1)}}, "classes.slow.speed must be a number above"),
        ({"classes": {"a": DeviceClass(speed=math.nan)}}, "classes.a.speed must be a number above"),
    ],
)
def test_other_values_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Network(**options)


IDEAL = network_named("ideal")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"up_mbps": 1.5}, "network.up_mbps=1.5: give network=ideal"),
        ({"waiting": "fixed", "waiting_seconds": 3.0}, "network.waiting=fixed, network.waiting_s"),
        ({"crash": 0.1, "rejoin_seconds": 3.0}, "network.crash=0.1, network.rejoin_seconds=3: g"),
        ({"classes": {"fast": DeviceClass(1.0, 2.0)}}, "network.classes={fast}: give network=id"),
    ],
)
def test_each_key_with_an_effect_is_named(options, words):
    assert only_virtual(replace(IDEAL, **options)).startswith(words)


def test_keys_without_an_effect_are_accepted():
    assert not only_virtual(replace(IDEAL, waiting_seconds=9.0, rejoin_seconds=9.0))
