"""Tests of all sparsifiers: number of entries, order of indices, and a falling loss."""

import numpy as np
import pytest

from edgewire.compression.per_tensor import count
from edgewire.compression.registry import names as methods
from tests.compression.sparsifiers.steps import make, run, update


@pytest.mark.parametrize("share", [0.001, 0.1, 0.29, 1.0])
def test_counts(share):
    assert count(share, 0) == 0
    assert count(share, 100) == max(1, round(share * 100))
    assert count(0.0, 100) == 0


@pytest.mark.parametrize("name", methods("sparsifier"))
def test_selections_are_in_order_and_never_change_the_update(name):
    for number, (g, (indices, values, _), _) in enumerate(run(make(name), 4, [3, 2, 1, 2])):
        np.testing.assert_array_equal(g, update(number))
        if indices is not None:
            assert indices.dtype == np.uint32
            assert (np.diff(indices.astype(np.int64)) > 0).all()
            assert values.shape == indices.shape
        assert values.dtype == np.float32
        assert values.flags.c_contiguous


@pytest.mark.parametrize("name", ["cesgd", "esgd"])
def test_a_loss_falls_only_between_two_known_losses(name):
    losses = [-1.0, -2.0, None, 5.0, 4.0, float("nan"), 3.0, float("inf"), 1.0]
    options = {"cap": 0.0} if name == "esgd" else {}
    same = [s.same for _, s, _ in run(make(name, **options), len(losses), losses)]
    assert same == [False, True, False, False, True, False, False, False, False]
