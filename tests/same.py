"""How tests compare named arrays."""

import numpy as np


def expect_same(found, expected):
    """Assert that two dictionaries hold equal arrays or tensors, of equal type, by name."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)
