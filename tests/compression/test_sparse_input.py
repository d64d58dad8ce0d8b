"""An update that is given as (indices, values) has the payload of a sparsifier's selection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.batchnorm import exact_tensors, separate
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names as methods
from tests.compression.surgery import widened
from tests.same import expect_same

SHAPES = {
    "0.running_mean": (6,),
    "0.weight": (16, 12),
    "1.weight": (12,),
    "1.running_var": (12,),
    "1.num_batches_tracked": (),
    "2.weight": (20, 11),
    "2.bias": (),
}
NORMED = Layout(tuple(SHAPES), tuple(SHAPES.values()), ("float32",) * len(SHAPES))
PLAIN = Layout(("a", "b", "c"), ((30, 10), (), (7, 3)), ("float32",) * 3)
LAYOUTS = {"plain": PLAIN, "normed": NORMED}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
every_quantizer = pytest.mark.parametrize("quantizer", methods("quantizer"))
CODERS = methods("coder")


def sparse(layout, share, seed=0):
    """Return an index set and its values, none of which is 0."""
    draw = np.random.default_rng(seed)
    indices = np.flatnonzero(draw.random(layout.size) < share).astype(np.uint32)
    values = draw.standard_t(3, size=len(indices)).astype(np.float32)
    return indices, np.where(values == 0, np.float32(1), values)


def whole(layout, indices, values):
    vector = np.zeros(layout.size, dtype=np.float32)
    vector[indices] = values
    return vector


def statistics(layout):
    """Return (n,) bool: True for entries that are running statistics."""
    found = np.zeros(layout.size, dtype=np.bool_)
    for tensor in exact_tensors(layout):
        found[layout.offsets[tensor] : layout.offsets[tensor + 1]] = True
    return found


@given(
    layout=st.sampled_from([PLAIN, NORMED]),
    coder=st.sampled_from(CODERS),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_an_exact_codec_restores_its_input(layout, coder, share, seed):
    codec, (indices, values) = make_codec(coder=coder), sparse(layout, share, seed)
    assert codec.exact
    update = decode_update(codec.encode_sparse(indices, values, layout), layout)
    np.testing.assert_array_equal(update.indices, indices)
    assert update.values.tobytes() == values.tobytes()
    dense = codec.encode(whole(layout, indices, values), layout)
    np.testing.assert_array_equal(update.dense(), decode_update(dense, layout).dense())


@every_layout
@every_quantizer
@pytest.mark.parametrize("count", [0, 1, 60])
def test_the_payload_equals_that_of_a_sparsifier_with_these_entries(quantizer, layout, count):
    """topk selects the entries that are not 0, so both payloads decode to the same update."""
    cut = separate(layout, exact_tensors(layout))
    trained = np.flatnonzero(~statistics(layout))
    draw = np.random.default_rng(count)
    indices = np.sort(draw.choice(trained, count, replace=False)).astype(np.uint32)
    values = draw.standard_t(3, size=count).astype(np.float32) + np.float32(1e-9)
    given = make_codec("dense", quantizer, "raw", feedback=False)
    density = max(count, 1) / cut.layout.size
    selecting = make_codec("topk", quantizer, "raw", feedback=False, density=density)
    found = decode_update(given.encode_sparse(indices, values, layout, seed=5), layout)
    expected = np.zeros(layout.size, dtype=np.float32)
    if count:  # topk sends at least one entry
        payload = selecting.encode(whole(layout, indices, values), layout, seed=5)
        expected = decode_update(payload, layout).dense()
    np.testing.assert_array_equal(found.dense(), expected)
    assert len(found.indices) == count + (0 if given.exact else statistics(layout).sum())


FALLING_BACK = [("topk", False), ("randomk", False), ("threshold", False), ("dense", True)]
FALLING_BACK += [("dense", None)]  # of every entry


@every_layout
@every_quantizer
@pytest.mark.parametrize(("sparsifier", "feedback"), FALLING_BACK)
def test_selecting_or_feedback_methods_and_all_entries_get_the_dense_encoding(
    sparsifier, feedback, quantizer, layout
):
    codec = make_codec(sparsifier, quantizer, "raw", feedback=feedback)
    memories = {}, {}
    for number in range(4):
        indices, values = sparse(layout, 1.1 if feedback is None else 0.3, number)
        vector = whole(layout, indices, values)
        indices.flags.writeable = values.flags.writeable = False
        chosen = None if feedback is None else indices
        one = codec.encode_sparse(chosen, values, layout, memory=memories[0], seed=number)
        two = codec.encode(vector, layout, memory=memories[1], seed=number)
        assert one == two
        expect_same(*memories)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sparsifier", ["dense", "topk"])
@every_layout
def test_values_that_are_not_finite_are_refused(bad, sparsifier, layout):
    indices, values = sparse(layout, 0.3)
    for place in (0, len(values) // 2):
        values[place] = bad
        for quantizer in ("float32", "int8"):
            with pytest.raises(PayloadError, match=r"NaN|infinity"):
                make_codec(sparsifier, quantizer).encode_sparse(indices, values, layout)


@st.composite
def cuts(draw):
    """Return a layout of a few tensors, and the tensors that are exact."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=7))
    exact = tuple(t for t in range(len(sizes)) if draw(st.booleans()))
    names = tuple(f"t{t}" for t in range(len(sizes)))
    return Layout(names, tuple((size,) for size in sizes), ("float32",) * len(sizes)), exact


@given(cut=cuts(), data=st.data())
def test_widen_undoes_narrow_except_for_absent_statistics(cut, data):
    layout, exact = cut
    parts = separate(layout, exact)
    places = st.integers(0, layout.size - 1) if layout.size else st.nothing()
    indices = np.array(sorted(data.draw(st.sets(places))), dtype=np.uint32)
    values = np.arange(1, len(indices) + 1, dtype=np.float32)
    wide, mixed = widened(parts, *parts.narrow(indices, values))
    np.testing.assert_array_equal(whole(layout, wide, mixed), whole(layout, indices, values))
    added = np.setdiff1d(wide, indices)
    assert set(indices) <= set(wide)
    runs = [range(*run) for run in parts.exact_runs]
    assert all(any(place in run for run in runs) for place in added.tolist())
