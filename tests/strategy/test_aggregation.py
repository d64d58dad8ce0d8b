"""The mean of sparse updates equals the mean of the same updates filled with zeros."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.strategy.aggregation import SparseMean
from edgewire.strategy.run.serialization import from_bytes, to_bytes

# The values are multiples of 1/4, so sums are exact and means can be compared bit for bit.
weights = st.sampled_from([1.0, 2.0, 4.0, 0.5, 3.0])


@st.composite
def updates(draw, size):
    """Draw an update (indices or None for all, values, weight); `indices` may be empty or full."""
    kind = draw(st.sampled_from(["some", "few", "none", "all", "dense"]))
    if kind in ("dense", "all"):
        indices = None if kind == "dense" else np.arange(size)
    else:
        most = {"some": size, "few": size // 100, "none": 0}[kind]
        places = st.integers(0, size - 1) if size else st.nothing()
        indices = np.array(sorted(draw(st.sets(places, max_size=most))), dtype=np.uint32)
    count = size if indices is None else len(indices)
    seed = draw(st.integers(0, 2**32))
    values = np.random.default_rng(seed).integers(-64, 65, count).astype(np.float32) / 4
    indices = None if indices is None else indices.astype(np.uint32)
    return indices, values, draw(weights)


@st.composite
def rounds(draw):
    """Draw a size and some rounds of updates, with few and with many indices."""
    size = draw(st.sampled_from([1, 2, 40, 700]))
    one = st.lists(updates(size), min_size=1, max_size=5)
    return size, draw(st.lists(one, min_size=1, max_size=4))


def added(mean, round_of_updates):
    for indices, values, weight in round_of_updates:
        mean.add(indices, values, weight)
    return mean.take()


def whole(size, indices, values):
    vector = np.zeros(size, dtype=np.float32)
    vector[slice(None) if indices is None else indices] = values
    return vector


@given(rounds())
def test_the_mean_equals_that_of_dense_updates_in_every_round(given_rounds):
    size, several = given_rounds
    mean, taken = SparseMean(size), []
    for one in several:  # each round starts from zero
        for array in (array for update in one for array in update[:2] if array is not None):
            array.flags.writeable = False
        union, values = added(mean, one)
        total = sum(np.float32(w) * whole(size, i, v) for i, v, w in one)
        expected = total / np.float32(sum(w for *_, w in one))
        np.testing.assert_array_equal(whole(size, union, values), expected)
        assert values.dtype == np.float32
        every = range(size)
        entries = sorted(set().union(*(every if i is None else i.tolist() for i, *_ in one)))
        assert (list(every) if union is None else union.tolist()) == entries
        assert (union is None) == (len(entries) == size)
        assert union is None or union.dtype == np.uint32
        taken.append((values, values.copy()))
    for values, copy in taken:  # later rounds change no returned mean
        np.testing.assert_array_equal(values, copy)


@pytest.mark.parametrize("count", [4, 400])
def test_the_union_of_the_indices_increases(count):
    size, draw, mean = 1000, np.random.default_rng(0), SparseMean(1000)
    for _ in range(3):
        sets = [np.sort(draw.choice(size, count, replace=False)).astype("u4") for _ in range(3)]
        union, _ = added(mean, [(s, np.ones(count, np.float32), 1.0) for s in sets])
        np.testing.assert_array_equal(union, np.unique(np.concatenate(sets)))


@given(rounds(), st.sampled_from([0.5, 1.0]))
def test_the_exponent_counts_the_weight_of_the_nodes_that_sent_an_entry(given_rounds, exponent):
    size, several = given_rounds
    mean = SparseMean(size, sender_exponent=exponent)
    for one in several:  # each round starts from zero
        union, values = added(mean, one)
        total = sum(w * whole(size, i, v) for i, v, w in one)
        sent = np.zeros(size)
        for indices, _, weight in one:
            sent[slice(None) if indices is None else indices] += weight
        weight = sum(w for *_, w in one)
        factor = (weight / np.where(sent > 0, sent, weight)) ** exponent
        expected = total / weight * factor
        np.testing.assert_allclose(whole(size, union, values), expected, rtol=1e-5, atol=1e-6)


@given(rounds(), st.sampled_from([0.0, 0.5]))
def test_a_mean_goes_on_from_its_state(given_rounds, exponent):
    """A checkpoint may hold the state after any update, as in a buffer."""
    size, several = given_rounds
    mean = SparseMean(size, sender_exponent=exponent)
    state = to_bytes(SparseMean(size, sender_exponent=exponent))
    for one in several:
        union, values = added(mean, one)
        for indices, numbers, weight in one:
            resumed = from_bytes(SparseMean, state)
            resumed.add(indices, numbers, weight)
            state = to_bytes(resumed)
        found, taken = resumed.take()
        state = to_bytes(resumed)
        np.testing.assert_array_equal(union, found)
        np.testing.assert_array_equal(values, taken)
