import sys

import pytest


@pytest.fixture
def at_home():
    """Put back what an app that is imported in this process changes: where modules are found."""
    path, finders, modules = sys.path[:], sys.meta_path[:], set(sys.modules)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith("/tmp"):
            del sys.modules[name]
