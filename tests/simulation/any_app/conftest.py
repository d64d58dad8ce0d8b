import pytest

from tests.simulation.any_app import apps


@pytest.fixture
def at_home():
    """Undo what an imported app changes in this process: the module search path and the modules."""
    with apps.at_home():
        yield
