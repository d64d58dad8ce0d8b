"""Engines without a virtual clock refuse the network options that act only on such a clock."""

from dataclasses import fields, replace

import pytest

from edgewire.conf.load import HERE
from edgewire.conf.network import DeviceClass, Network, network_named
from edgewire.conf.schema import ConfigError
from edgewire.conf.virtual_only import expect_real_time, only_virtual
from tests.runs import configured

IDEAL = network_named("ideal")
NAMES = sorted(path.stem for path in (HERE / "network").glob("*.yaml"))
ASKED = {  # a value for each key, and the options with which the key has an effect
    "up_mbps": (1.0, {}),
    "down_mbps": (1.0, {}),
    "server_mbps": (1.0, {}),
    "latency_ms": (5.0, {}),
    "seconds_per_step": (0.2, {}),
    "encoding_seconds": (0.1, {}),
    "loss": (0.1, {}),
    "waiting": ("fixed", {}),
    "waiting_seconds": (3.0, {"waiting": "fixed"}),
    "crash": (0.1, {}),
    "rejoin_seconds": (3.0, {"crash": 0.1}),
    "join_seconds": (3.0, {}),
    "classes": ({"fast": DeviceClass(1.0, 2.0)}, {}),
}


def test_every_key_of_a_network_is_checked():
    assert ASKED.keys() == {field.name for field in fields(Network)}


@pytest.mark.parametrize("key", ASKED)
def test_each_key_with_an_effect_is_named(key):
    value, besides = ASKED[key]
    assert f"network.{key}=" in only_virtual(replace(IDEAL, **besides, **{key: value}))


@pytest.mark.parametrize("name", NAMES)
def test_all_networks_but_the_ideal_one_are_refused(name):
    config = configured(f"network={name}")
    if name == "ideal":
        expect_real_time(config)
        return
    with pytest.raises(ConfigError, match=r"give network\.?\w*=\w+; .*run\.py"):
        expect_real_time(config)


def test_keys_without_an_effect_are_accepted():
    assert not only_virtual(replace(IDEAL, waiting_seconds=9.0, rejoin_seconds=9.0))


def test_an_error_suggests_overrides():
    for changed, end in (
        ({"seconds_per_step": 0.04}, "give network.seconds_per_step=0.01"),
        ({"up_mbps": 5.0, "latency_ms": 1.0}, "network.latency_ms=1: give network=ideal"),
        ({"up_mbps": 5.0}, "give network.up_mbps=null"),
    ):
        assert only_virtual(replace(IDEAL, **changed)).endswith(end)
