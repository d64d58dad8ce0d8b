"""A network by its name is what `network=NAME` is."""

from dataclasses import asdict

import pytest

from simulation.any_app.network import FOLDER, network_named
from simulation.errors import UsageError
from tests.runs import configured

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_the_network_of_a_name(name):
    expected = asdict(configured(f"network={name}").network)
    found = vars(network_named(name))
    found["classes"] = {key: share._asdict() for key, share in found["classes"].items()}
    if found["waiting"] == "none":  # nothing else is read
        expected["waiting_seconds"] = found["waiting_seconds"]
    assert found == expected


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="there is no isdn; there are: adsl, cable, classes"):
        network_named("isdn")
