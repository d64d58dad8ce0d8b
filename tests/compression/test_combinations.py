"""Tests of every combination of registered methods."""

import random
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from edgewire.compression.base import PayloadError, StepContext
from edgewire.compression.batchnorm import exact_tensors, separate
from edgewire.compression.codec import Codec
from edgewire.compression.decoder import Description, decode, decode_update, describe, parts_of
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names as methods
from tests.compression.quantizers.bounds import error_bound
from tests.compression.quantizers.values import SPECIAL
from tests.compression.surgery import widened

# Each sparsifier with each quantizer, and both kinds of selection with each quantizer and coder.
COMBINATIONS = sorted(
    {
        *product(methods("sparsifier"), methods("quantizer"), ["entropy"]),
        *product(["dense", "topk"], methods("quantizer"), methods("coder")),
    }
)
# The combinations that a decoder distinguishes.
DECODERS = [c for c in COMBINATIONS if c[0] in ("dense", "topk")]
every_decoder = pytest.mark.parametrize(
    ("sparsifier", "quantizer", "coder"), DECODERS, ids=["-".join(c) for c in DECODERS]
)
every_combination = pytest.mark.parametrize(
    ("sparsifier", "quantizer", "coder"), COMBINATIONS, ids=["-".join(c) for c in COMBINATIONS]
)


def check_round_trip(codec: Codec, update: np.ndarray, layout: Layout) -> None:
    """Assert that each decoded value is within the quantizer's error bound."""
    before = update.copy()
    payload = codec.encode(update, layout, seed=3)
    np.testing.assert_array_equal(update, before)
    cut = separate(layout, exact_tensors(layout))
    trained, exact = cut.gather(update), cut.gather_exact(update)
    with np.errstate(all="ignore"):
        indices, values, _ = codec.sparsifier.select(trained, StepContext(cut.layout, {}, (3, 0)))
        bound = error_bound(codec.quantizer, values, parts_of(indices, cut.layout))
    assert bound.shape == values.shape
    if indices is None:
        values, bound = cut.merge(values, exact), cut.merge(bound, np.zeros_like(exact))
    else:
        bound = widened(cut, indices, bound, np.zeros_like(exact))[1]
        indices, values = widened(cut, indices, values, exact)
    for given_layout in (layout, None):
        sent = decode_update(payload, given_layout)
        assert sent.layout.shapes == layout.shapes
        assert sent.values.dtype == np.float32
        assert sent.values.flags.aligned
        assert (indices is None) == (sent.indices is None)
        if indices is not None:
            np.testing.assert_array_equal(sent.indices, indices)
        assert (np.abs(sent.values.astype(np.float64) - values) <= bound).all()
        vector, found = decode(payload, given_layout)
        assert (vector.dtype, vector.shape) == (np.float32, (layout.size,))
        assert found == sent.layout
        np.testing.assert_array_equal(vector, sent.dense())


@pytest.mark.few(50)
@every_combination
def test_real_sizes(sparsifier, quantizer, coder, lenet, mixed, update_for):
    codec = make_codec(sparsifier, quantizer, coder)
    for layout in (lenet, mixed):
        check_round_trip(codec, update_for(layout), layout)


@given(data=st.data())
def test_any_layout_any_values(data):
    shapes = data.draw(st.lists(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    names = tuple(f"layer {i}" for i in range(len(shapes)))
    layout = Layout(names, tuple(shapes), ("float32",) * len(shapes))
    bits = data.draw(st.binary(min_size=4 * layout.size, max_size=4 * layout.size))
    update = np.frombuffer(bits, dtype=np.float32).copy()
    update[~np.isfinite(update)] = 1
    check_round_trip(make_codec(*data.draw(st.sampled_from(COMBINATIONS))), update, layout)


@every_decoder
def test_values_that_are_not_finite_are_refused(sparsifier, quantizer, coder, lenet):
    codec = make_codec(sparsifier, quantizer, coder)
    for bad, tensor in product([np.nan, np.inf, -np.inf], [0, 7, 9]):
        update = np.zeros(lenet.size, dtype=np.float32)
        update[lenet.offsets[tensor]] = bad
        what = "NaN" if np.isnan(bad) else "infinity"
        with pytest.raises(PayloadError, match=f"update holds {what} in layer{tensor}.weight: "):
            codec.encode(update, lenet)


@pytest.mark.few(90)
@every_combination
def test_a_payload_depends_on_its_arguments_only(
    sparsifier, quantizer, coder, mixed, make_layout, update_for
):
    """Neither numpy's settings nor global random states have an effect, or are changed."""
    one, other = (make_codec(sparsifier, quantizer, coder) for _ in range(2))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    given = [(SPECIAL[name].astype(np.float32), make_layout([(300,)]))
             for name in ("wide", "subnormal", "largest")]  # fmt: skip
    for update, layout in [*given, (update_for(mixed), mixed)]:
        expected = one.encode(update, layout, seed=5)
        with np.errstate(all="raise"):
            assert one.encode(update, layout, seed=5) == expected
            assert other.encode(update, layout, memory={}, seed=5) == expected
            decode(expected, layout)
            assert np.geterr()["over"] == "raise"
    assert random.getstate() == states[0]
    np.testing.assert_equal(np.random.get_state(), states[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


@every_decoder
def test_describe(sparsifier, quantizer, coder, mixed, update_for):
    payload = make_codec(sparsifier, quantizer, coder).encode(update_for(mixed), mixed)
    sizes = mixed.size, len(decode_update(payload).values), len(mixed), len(payload)
    assert describe(payload) == Description(1, sparsifier, quantizer, coder, *sizes)
