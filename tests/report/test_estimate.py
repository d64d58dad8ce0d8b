"""Confidence intervals by Student's t, also for differences between runs of equal seeds."""

from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.report.estimate import estimate, paired, student

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@pytest.mark.parametrize(  # the two-sided 95 % values of a textbook's table
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (10, 2.228), (5000, 1.960)]
)
def test_an_interval_is_by_students_t(freedom, t):
    assert student(freedom) == pytest.approx(t, abs=5e-4)
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.std, found.count) == (2, 1, 3)
    assert found.half == pytest.approx(4.3027 * 1 / 3**0.5, rel=1e-4)


def test_one_value_has_no_interval_and_noise_is_an_interval_that_holds_zero():
    found = estimate([0.0])
    assert (found.mean, found.std, found.half, found.count) == (0, None, None, 1)
    assert estimate([]) is None
    assert not found.noise
    assert estimate([0.0, 0.0]).noise
    assert estimate([-1.0, 1.1, 0.3]).noise
    assert not estimate([-1.0, -1.1, -0.9]).noise


@given(VALUES, st.floats(-50, 50))
def test_a_constant_shift_is_the_difference_without_spread(values, shift):
    theirs = dict(enumerate(values))
    found = paired({seed: value + shift for seed, value in theirs.items()}, theirs)
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert found.half == pytest.approx(0, abs=1e-9)


def test_only_common_seeds_are_compared():
    found = paired({0: 5.0, 1: 7.0, 9: 100.0}, {1: 6.0, 0: 5.0, 3: -100.0})
    assert (found.mean, found.count) == (0.5, 2)
    assert found.half == pytest.approx(12.706 * stdev([0, 1]) / 2**0.5, rel=1e-4)
    assert found.noise
    assert paired({0: 1.0}, {1: 1.0}) is None
