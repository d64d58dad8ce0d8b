"""Quantizers whose levels are summed over nodes: the sum is that of the decoded values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError, StepContext, TensorSlices
from edgewire.compression.codec import Codec
from edgewire.compression.decoder import decode, parts_of, quantized
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.quantizers.grid import OFFSET, Grid
from edgewire.compression.quantizers.lowrank import LowRank

LAYOUT = Layout(
    ("conv", "bias", "none", "fc", "one"),
    ((12, 5, 3), (12,), (0,), (40, 30), (1,)),
    ("float32",) * 5,
)
PARTS = parts_of(None, LAYOUT)
STOCHASTIC = Grid(levels=7, stochastic=True)
KINDS = {
    "grid": make_codec(quantizer="grid", coder="raw", levels=1),
    "grid of 15 levels": make_codec(quantizer="grid", coder="raw", levels=7),
    "lowrank": make_codec(quantizer="lowrank", coder="raw", rank=3),
    "grid, rounded at random": make_codec(quantizer="grid", coder="raw", stochastic=True),
    "lowrank of 255 levels": make_codec(quantizer="lowrank", coder="raw", levels=127, reach=4.0),
}


def update(node, number=0):
    made = np.random.default_rng([node, number]).standard_normal(LAYOUT.size).astype(np.float32)
    made[LAYOUT.offsets[1] : LAYOUT.offsets[2]] *= 1000
    return made


def exchange(codec: Codec, updates, memories, common, number):
    """Return the mean of the nodes' updates from sums alone, that of the decoded ones, and the
    next common numbers."""
    quantizer, decoded, totals, sizes = codec.quantizer, [], 0, 0
    for each, memory in zip(updates, memories, strict=True):
        payload = codec.encode(each, LAYOUT, memory=memory, common=common)
        levels, own = quantizer.summed(quantized(payload, LAYOUT), PARTS)
        assert np.abs(levels).max() <= quantizer.levels
        assert len(own) == quantizer.tensors(PARTS)
        totals, sizes = totals + levels.astype(np.int64), sizes + own.astype(np.int64)
        decoded.append(decode(payload, LAYOUT)[0])
    nodes, draw = len(decoded), np.random.default_rng(number)
    assert len(totals) == quantizer.entries(common, PARTS)
    after = quantizer.next_common(totals, sizes, nodes, common, PARTS, draw)
    return quantizer.mean_of(totals, nodes, common, PARTS), np.mean(decoded, axis=0), after


def first(quantizer, size=4.0):
    """Return what nodes have in common in a first round of a model with values of this size."""
    model, draw = np.full(LAYOUT.size, size, np.float32), np.random.default_rng(9)
    return quantizer.first_common(model, PARTS, draw)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_sums_is_the_mean_of_what_was_sent(kind):
    memories, common = [{} for _ in range(5)], first(KINDS[kind].quantizer)
    for number in range(4):
        updates = [update(node, number) for node in range(5)]
        mean, decoded, common = exchange(KINDS[kind], updates, memories, common, number)
        assert min(common) >= 0
        np.testing.assert_allclose(mean, decoded, rtol=2e-5, atol=1e-5 * np.abs(decoded).max())


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_residual_what_is_sent_adds_up_to_the_updates(kind):
    """After each step, residual + all that was sent = all updates, so no part is lost."""
    memory, common, sent = {}, first(KINDS[kind].quantizer), 0
    for number in range(6):
        before = memory.get("error", np.zeros(LAYOUT.size, np.float32)).copy()
        mean, _, common = exchange(KINDS[kind], [update(0, number)], [memory], common, number)
        wanted = before + update(0, number) - mean
        np.testing.assert_allclose(memory["error"], wanted, rtol=1e-3, atol=0.05)
        sent = sent + np.abs(mean)
    assert (sent > 0).mean() > 0.5


@given(st.floats(-7, 7), st.integers(0, 1 << 30))
def test_levels_that_are_rounded_at_random_have_the_right_mean(level, seed):
    """The largest number of levels is 7, so nothing is clipped."""
    layout = Layout(("all",), ((4000,),), ("float32",))
    (scale,) = STOCHASTIC.scales_of(np.array([0]))
    values = np.full(4000, level * scale, np.float32)
    step = StepContext(layout, {}, (seed, 0), common=[OFFSET])
    levels = STOCHASTIC.encode(values, parts_of(None, layout), step)[1]
    assert {*levels.tolist()} <= {math.floor(level), math.ceil(level)}
    assert abs(levels.mean() - level) < 0.05


def test_a_matrix_of_low_rank_is_learned_from_sums():
    """The basis follows the sums, as in PowerSGD's subspace iteration."""
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((40, 2)) @ draw.standard_normal((2, 30))
    layout = Layout(("fc",), ((40, 30),), ("float32",))
    quantizer, parts = LowRank(rank=2, levels=127, reach=6.0), parts_of(None, layout)
    value = matrix.astype(np.float32).reshape(-1)
    common = quantizer.first_common(np.zeros(1200, np.float32), parts, draw)
    for number in range(6):
        step = StepContext(layout, {}, (0, number), common=common)
        levels, sizes = quantizer.summed(quantizer.encode(value, parts, step), parts)
        mean = quantizer.mean_of(levels, 1, common, parts)
        common = quantizer.next_common(levels, sizes, 1, common, parts, draw)
    assert np.linalg.norm(mean - value) < 0.03 * np.linalg.norm(value)


def test_a_tensor_of_zeros_has_the_common_size():
    common = [OFFSET + size for size in (8, -16, 0, 24, 40)]
    codec = KINDS["grid"]
    payload = codec.encode(np.zeros(LAYOUT.size, np.float32), LAYOUT, common=common)
    _, sizes = codec.quantizer.summed(quantized(payload, LAYOUT), PARTS)
    assert sizes.tolist() == [8, -16, 0, 24, 40]


def test_scales_are_exact_powers():
    """They do not depend on the machine: eight steps double a scale bit for bit."""
    scales = Grid(levels=3, reach=1.5).scales_of(np.arange(-980, 900))
    assert scales.dtype == np.float32
    assert (scales[8:] == 2 * scales[:-8]).all()
    assert (scales > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@given(common=st.lists(st.integers(0, 2**62), max_size=200))
def test_any_numbers_in_common_are_used_or_refused(kind, common):
    quantizer = KINDS[kind].quantizer
    for use in (
        lambda: KINDS[kind].encode(update(1), LAYOUT, common=common),
        lambda: quantizer.entries(common, PARTS),
        lambda: quantizer.mean_of(np.zeros(LAYOUT.size, np.int64), 3, common, PARTS),
    ):
        try:
            use()
        except PayloadError:
            continue
        assert len(common) in (5, *range(6, 400))


def test_rows_of_a_basis_that_depend_on_others_are_left_out():
    quantizer = LowRank(rank=2)
    parts = TensorSlices(np.array([0, 1200]), ((40, 30),))
    draw = np.random.default_rng(0)
    begun = quantizer.first_common(np.zeros(1200, np.float32), parts, draw)
    equal = np.repeat(np.arange(1, 41), 2)  # two equal columns
    again = quantizer.next_common(equal, np.zeros(1, np.int64), 2, begun, parts, draw)
    values = update(3)[:1200]
    step = StepContext(LAYOUT, {}, (0, 0), common=again)
    decoded = quantizer.decode(quantizer.encode(values, parts, step), parts)
    assert np.isfinite(decoded).all()
    assert np.linalg.matrix_rank(decoded.reshape(40, 30)) == 1


@pytest.mark.parametrize(("place", "number"), [(1, -(1 << 15)), (1, 20_000), (4, 2), (4, 255)])
def test_a_basis_beyond_its_bounds_is_refused(place, number):
    """-2^15 is its own magnitude as int16."""
    quantizer = KINDS["lowrank"].quantizer
    streams = [*quantizer.encode(update(0), PARTS, StepContext(LAYOUT, {}, (0, 0)))]
    streams[place] = streams[place].copy()
    streams[place][-1] = number
    with pytest.raises(PayloadError, match="the common basis is not one"):
        quantizer.decode(streams, PARTS)
