"""`network_named(NAME)` is what `network=NAME` selects; values out of bounds are refused."""

import math
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.conf.network import FOLDER, DeviceClass, Network, network_named
from tests.runs import configured

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NUMBERS = [field.name for field in fields(Network) if "float" in str(field.type)]
NO_LIMIT = {"up_mbps", "down_mbps", "server_mbps", "rejoin_seconds"}
SHARES = {"loss", "crash"}


@pytest.mark.parametrize("name", NAMES)
def test_the_network_of_a_name(name):
    assert asdict(network_named(name)) == asdict(configured(f"network={name}").network)


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
    with pytest.raises(ValueError, match=rf"^network\.{name} must be a number .*, not ") as refused:
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
    ],
)
def test_other_values_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Network(**options)


@pytest.mark.parametrize("options", [{"share": 0}, {"speed": -1}, {"speed": math.nan}])
def test_a_class_of_devices_needs_numbers_above_0(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"network\.classes\.slow\.{name} must be a number above"):
        Network(classes={"slow": DeviceClass(**options)})
