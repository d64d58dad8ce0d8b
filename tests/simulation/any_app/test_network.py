"""`--network NAME` gives the same network as the override `network=NAME`."""

from dataclasses import asdict

import pytest

from simulation.any_app.network import FOLDER, network_named
from simulation.errors import UsageError
from tests.runs import configured

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_named_network_equals_its_configuration(name):
    expected = asdict(configured(f"network={name}").network)
    found = vars(network_named(name))
    found["classes"] = {key: share._asdict() for key, share in found["classes"].items()}
    if found["waiting"] == "none":  # no other waiting option is read
        expected["waiting_seconds"] = found["waiting_seconds"]
    assert found == expected


def test_an_unknown_name_is_refused_with_the_list_of_names():
    with pytest.raises(UsageError, match="there is no isdn; there are: adsl, cable, classes"):
        network_named("isdn")
