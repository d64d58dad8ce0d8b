"""Packed integers add up without a carry, in as few bytes as whole words allow."""

import time
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.secure import Packing

MOST = st.one_of(st.integers(1, 300), st.integers(0, 40).map(lambda b: 1 << b))
SECTIONS = st.lists(st.tuples(st.integers(0, 60), MOST), max_size=4)
CORNERS = st.sampled_from([-1, 0, 1])


@given(SECTIONS, st.integers(1, 200), st.integers(0, 2**32), st.data())
def test_sums_of_words_are_words_of_sums(sections, nodes, seed, data):
    packing, draw = Packing(sections, nodes), np.random.default_rng(seed)
    summands = data.draw(st.integers(1, nodes))
    corner = data.draw(CORNERS)  # the largest sums, the smallest, or random ones
    total, words = (
        [np.zeros(c, np.int64) for c, _ in sections],
        packing.from_bytes(bytes(packing.nbytes)),
    )
    noise = draw.integers(0, 2**64, packing.size, dtype=np.uint64)
    for _ in range(summands):
        values = [
            draw.integers(-m, m + 1, c) if not corner else np.full(c, corner * m)
            for c, m in sections
        ]
        total = [a + b for a, b in zip(total, values, strict=True)]
        sent = packing.to_bytes(packing.words(values) + noise)
        assert len(sent) == packing.nbytes
        words += packing.from_bytes(sent)
        words -= noise
    for found, expected in zip(packing.totals(words, summands), total, strict=True):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, expected)


@given(st.integers(0, 70_000), MOST, st.integers(1, 200))
def test_no_width_of_words_takes_one_percent_fewer_bytes(count, most, nodes):
    base, found = 2 * nodes * most + 1, Packing([(count, most)], nodes).nbytes
    digits = {width: int(8 * width / log2(base) - 1e-9) for width in range(1, 9)}
    best = min(-(-count // d) * width for width, d in digits.items() if d)
    assert max(best, count * log2(base) / 8 - 1e-6) <= found <= best * 1.01


@pytest.mark.parametrize(
    ("count", "most", "size"), [(98, 1, 55), (10_000, 1, 5_560), (62_000, 7, 62_000)]
)
def test_bytes_for_ten_nodes_are_those_of_the_design(count, most, size):
    assert Packing([(count, most)], 10).nbytes == size


WRONG = [
    ([[1.0, 0.0]], "no integer"),
    ([np.zeros(2, bool)], "no integer"),
    ([[1, 4]], "no integer from -3 to 3"),
    ([[-4, 0]], "no integer from -3 to 3"),
    ([np.array([-128, 0], np.int8)], "no integer from -3 to 3"),
    ([np.array([2**63, 0], np.uint64)], "no integer from -3 to 3"),
    ([[1, 2, 3]], "other sizes"),
    ([[[1, 2]]], "other sizes"),
    ([], "other sizes"),
    ([[1, 2], [1]], "other sizes"),
]


@pytest.mark.parametrize(("values", "say"), WRONG)
def test_values_that_do_not_fit_are_refused(values, say):
    packing = Packing([(2, 3)], 5)
    with pytest.raises(PayloadError, match=say):
        packing.words([np.asarray(each) for each in values])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64])
def test_all_types_of_integers_reach_the_largest_magnitude(dtype):
    """The sum of two values of int8 may be more than 127."""
    packing = Packing([(2, 127)], 3)
    values = np.array([127, 0 if np.dtype(dtype).kind == "u" else -127], dtype)
    (found,) = packing.totals(packing.words([values]), 1)
    np.testing.assert_array_equal(found, values.astype(np.int64))


@pytest.mark.parametrize(("sections", "nodes"), [([(1, 0)], 3), ([(1, -1)], 3), ([(1, 2**61)], 2)])
def test_sums_of_more_than_62_bits_are_refused(sections, nodes):
    Packing([(1, 2**61 - 1)], 2)
    with pytest.raises(PayloadError, match="a sum must have from 1 to 62 bits"):
        Packing(sections, nodes)


def test_a_sum_that_no_nodes_can_have_is_refused():
    """A digit above that of so many nodes, one of no value, and a word above that of its digits."""
    packing, full = Packing([(8, 1)], 10), Packing([(9, 1)], 10)
    assert packing.nbytes == full.nbytes == 5  # one word
    high = packing.words([np.ones(8, int)]) * np.uint64(4)
    packing.totals(high, 4)
    more, most = full.words([np.ones(9, int)]), ~np.zeros(1, np.uint64)
    for words, summands in ((high, 3), (more, 10), (most, 10)):
        with pytest.raises(PayloadError, match="the sum is impossible"):
            packing.totals(words, summands)


@pytest.mark.parametrize("size", [54, 56, 0])
def test_bytes_of_another_length_are_refused(size):
    with pytest.raises(PayloadError, match="a masked update has 55 bytes"):
        Packing([(98, 1)], 10).from_bytes(bytes(size))


def test_packing_is_vectorised():
    """A loop over the coordinates would take a second."""
    packing = Packing([(1_000_000, 1)], 10)
    values = [np.random.default_rng(0).integers(-1, 2, 1_000_000)]
    start = time.process_time()
    packing.totals(packing.from_bytes(packing.to_bytes(packing.words(values))), 1)
    assert time.process_time() - start < 0.3
