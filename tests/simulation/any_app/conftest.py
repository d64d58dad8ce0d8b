import pytest

from tests.simulation.any_app import apps


@pytest.fixture
def at_home():
    """Put back what an app that is imported in this process changes: where modules are found."""
    with apps.at_home():
        yield
