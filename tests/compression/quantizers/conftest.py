import numpy as np
import pytest


@pytest.fixture(autouse=True)
def quiet():
    """Ignore numpy's warnings, as `Codec.encode` and `Codec.decode` do for all methods."""
    with np.errstate(all="ignore"):
        yield
