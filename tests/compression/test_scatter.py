"""Writing entries at indices, block by block: bit for bit as numpy does, in little memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.scatter import (
    BLOCK,
    add_at,
    count_up,
    find,
    increase,
    put_at,
    subtract_at,
)

SIZES = [0, 1, 5, 4095, 4097, BLOCK, 3 * BLOCK + 7, 20 * BLOCK]
SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1e37, -1e37, 1.0, -1.0], dtype=np.float32)


def drawn(size, share=0.9):
    """Return a vector, indices into it, and values for these indices."""
    draw = np.random.default_rng(size)
    indices = np.flatnonzero(draw.random(size) < share).astype(np.uint32)
    vector, values = (draw.choice(SPECIAL, n) for n in (size, len(indices)))
    return vector, indices, values


def same(left, right):
    assert left.dtype == right.dtype
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.01, 0.9, 1.1])
def test_the_bits_equal_numpys(size, share):
    vector, indices, values = drawn(size, share)
    mine, theirs = vector.copy(), vector.copy()
    put_at(mine, indices, values)
    theirs[indices] = values
    same(mine, theirs)
    add_at(mine, indices, values[::-1].copy())
    theirs[indices] += values[::-1]
    same(mine, theirs)
    subtract_at(mine, indices, values)
    theirs[indices] -= values
    same(mine, theirs)
    add_at(mine, None, vector)
    subtract_at(mine, None, theirs)
    same(mine, theirs + vector - theirs)


@pytest.mark.parametrize("size", SIZES[2:])
def test_indices_that_do_not_increase_are_found_anywhere(size):
    indices = np.arange(0, 2 * size, 2, dtype=np.uint32)
    assert increase(indices)
    assert increase(indices[:1])
    assert increase(indices[:0])
    for place in {1, size // 2, size - 1, min(4096, size - 1), min(BLOCK, size - 1)}:
        wrong = indices.copy()
        wrong[place] = wrong[place - 1]
        assert not increase(wrong)


@pytest.mark.parametrize("size", SIZES)
def test_counting_up(size):
    counted = np.empty(size, dtype=np.uint32)
    count_up(counted, 7)
    same(counted, np.arange(7, 7 + size, dtype=np.uint32))


@given(st.sets(st.integers(0, 40)), st.lists(st.integers(0, 41), max_size=5))
def test_counts_of_indices_below_a_bound(places, bounds):
    indices = np.array(sorted(places), dtype=np.uint32)
    assert find(indices, bounds) == [sum(place < bound for place in places) for bound in bounds]
