"""Ray refuses what it would drop without a word; the ideal network it takes."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from conf.load import HERE, network_config
from conf.schema import DeviceClass, NetworkConfig
from simulation.errors import UsageError
from simulation.job import Job
from simulation.on_ray import refuse
from tests.runs import configured

IDEAL = network_config("ideal")
NAMES = sorted(path.stem for path in (HERE / "network").glob("*.yaml"))
ASKED = {  # a value for every key that there is, and what else it takes to be of effect
    "up_mbps": (1.0, {}),
    "down_mbps": (1.0, {}),
    "server_mbps": (1.0, {}),
    "latency_ms": (5.0, {}),
    "seconds_per_step": (0.2, {}),
    "loss": (0.1, {}),
    "waiting": ("fixed", {}),
    "waiting_seconds": (3.0, {"waiting": "fixed"}),
    "crash": (0.1, {}),
    "rejoin_seconds": (3.0, {"crash": 0.1}),
    "join_seconds": (3.0, {}),
    "classes": ({"fast": DeviceClass(1.0, 2.0)}, {}),
}


def job(network=IDEAL, **options):
    return Job(Path(), {}, 3, Path(), network=network, ideal=IDEAL, **options)


def test_every_key_of_a_network_is_looked_at():
    assert ASKED.keys() == {field.name for field in fields(NetworkConfig)}


@pytest.mark.parametrize("key", ASKED)
def test_a_network_is_refused_by_each_key_that_makes_one(key):
    value, besides = ASKED[key]
    with pytest.raises(UsageError) as caught:
        refuse(job(replace(IDEAL, **besides, **{key: value})), 0.0)
    assert f"network.{key}=" in str(caught.value)
    assert "engine=local" in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_all_networks_but_the_ideal_one_are_refused(name):
    network = configured(f"network={name}").network
    if name == "ideal":
        refuse(job(network), 0.0)
        return
    with pytest.raises(UsageError, match=r"network=ideal|network.waiting=none"):
        refuse(job(network), 0.0)


def test_keys_that_others_make_of_no_effect_are_not_asked_for():
    refuse(job(replace(IDEAL, waiting_seconds=9.0, rejoin_seconds=9.0)), 0.0)


def test_the_words_that_it_names_help():
    with pytest.raises(UsageError, match=r"or network.seconds_per_step=0.01$"):
        refuse(job(replace(IDEAL, seconds_per_step=0.04)), 0.0)
    with pytest.raises(UsageError, match=r"network.up_mbps=5, network.latency_ms=1: .*=ideal$"):
        refuse(job(replace(IDEAL, up_mbps=5.0, latency_ms=1.0)), 0.0)
    with pytest.raises(UsageError, match=r"or network.up_mbps=null$"):
        refuse(job(replace(IDEAL, up_mbps=5.0)), 0.0)


def test_logs_and_devices_that_its_nodes_do_not_have_are_refused():
    with pytest.raises(UsageError, match=r"ray\.log in the run folder"):
        refuse(job(verbose=True), 0.0)
    with pytest.raises(UsageError, match=r"device=cuda:0 without engine\.gpus_per_client="):
        refuse(job(device="cuda:0"), 0.0)
    refuse(job(device="cuda:0"), 0.5)
    refuse(job(device="cpu"), 0.0)
