"""PowerSGD: the power iteration, the Q that it keeps for the next update, and the error bound."""

import numpy as np
import pytest

from edgewire.compression.base import Kind, PayloadError
from edgewire.compression.quantizers.powersgd import PowerSgd
from tests.compression.quantizers.values import MOST, parts_of, selected, step_of


def round_trip(values, parts, rank=2, memory=None, seed=0):
    quantizer = PowerSgd(rank)
    memory = {} if memory is None else memory
    streams = quantizer.encode(values, parts, step_of(seed, memory))
    for stream, spec in zip(streams, quantizer.specs(parts), strict=True):
        assert (stream.dtype, stream.shape) == (spec.dtype, (spec.size,))
        assert spec.kind is Kind.FLOATS
    decoded = quantizer.decode(streams, parts)
    assert decoded.dtype == np.float32
    assert decoded.shape == values.shape
    return decoded


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def decaying(rows, cols, seed=0):
    """Return a matrix with singular values 1, 0.7, 0.49, ..."""
    draw = np.random.default_rng(seed)
    left, right = (np.linalg.qr(draw.normal(size=(n, min(rows, cols))))[0] for n in (rows, cols))
    return (left * 0.7 ** np.arange(min(rows, cols)) @ right.T).astype(np.float32)


def relative(decoded, values):
    return np.linalg.norm(decoded - values) / np.linalg.norm(values)


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("shape", [(30, 40), (40, 3, 5, 5), (7, 2000)])
def test_a_matrix_of_this_rank_is_exact(rank, shape):
    cols = int(np.prod(shape[1:]))
    values = (normal(shape[0], rank) @ normal(rank, cols, seed=1)).reshape(-1)
    memory = {}
    for seed in range(3):
        decoded = round_trip(values, parts_of(shape), rank, memory, seed)
        assert relative(decoded, values) < 1e-5


def test_the_streams_equal_one_power_iteration():
    """P = M Q made orthonormal, Q = M^T P, value = scale P Q^T; one stream holds all tensors' P."""
    shapes = ((20, 30), (7,), (12, 3, 5), (), (3, 4))
    parts = parts_of(*shapes)
    values = normal(int(parts.segments[-1]))
    memory = {"powersgd": normal(2 * (30 + 15), seed=1)}
    start = memory["powersgd"].copy()
    scales, p, q, raw = PowerSgd().encode(values, parts, step_of(0, memory))
    tensors = np.split(values, parts.segments[1:-1])
    for number, at_p, at_q in ((0, 0, 0), (2, 40, 60)):
        m = tensors[number].reshape(shapes[number][0], -1)
        rows, cols = m.shape
        left = p[at_p : at_p + 2 * rows].reshape(rows, 2)
        right = q[at_q : at_q + 2 * cols].reshape(cols, 2)
        np.testing.assert_allclose(left.T @ left, np.eye(2), atol=1e-6)
        image = m @ start[at_q : at_q + 2 * cols].reshape(cols, 2)
        np.testing.assert_allclose(left @ (left.T @ image), image, atol=1e-4)
        scale = scales[number // 2]
        assert scale == np.abs(m).max()
        np.testing.assert_allclose(right * scale, m.T @ left, atol=1e-5)
        decoded = np.split(PowerSgd().decode((scales, p, q, raw), parts), parts.segments[1:-1])
        np.testing.assert_allclose(decoded[number], (scale * left @ right.T).ravel(), atol=1e-5)
    assert raw.tolist() == np.concatenate([tensors[1], tensors[3], tensors[4]]).tolist()
    np.testing.assert_array_equal(memory["powersgd"], q)


@pytest.mark.parametrize("rank", [1, 3])
def test_warm_start_converges_to_the_best_approximation(rank):
    m = decaying(50, 70)
    best = np.sqrt((np.linalg.svd(m, compute_uv=False)[rank:] ** 2).sum()) / np.linalg.norm(m)
    memory = {}
    errors = []
    for step in range(20):
        decoded = round_trip(m.reshape(-1), parts_of((50, 70)), rank, memory, step)
        errors.append(relative(decoded, m.reshape(-1)))
    assert errors[0] > 1.02 * best
    assert errors[-1] == pytest.approx(best, rel=1e-4)
    cold = relative(round_trip(m.reshape(-1), parts_of((50, 70)), rank, {}, 19), m.reshape(-1))
    assert cold > 1.02 * best


@pytest.mark.parametrize(
    "other", [np.zeros(3, dtype=np.float32), np.zeros(60), np.zeros((30, 2), dtype=np.float32)]
)
def test_a_memory_that_does_not_fit_is_started_anew(other):
    values, parts = normal(600), parts_of((20, 30))
    memory = {"powersgd": other}
    expected = round_trip(values, parts)
    np.testing.assert_array_equal(round_trip(values, parts, memory=memory), expected)
    assert memory["powersgd"].shape == (60,)


def test_steps_of_zeros_and_of_low_rank_do_not_break_the_memory():
    parts = parts_of((20, 30))
    values = (normal(20, 2) @ normal(2, 30, seed=1)).reshape(-1)
    memory = {}
    round_trip(values, parts, memory=memory)
    before = memory["powersgd"].copy()
    assert not round_trip(np.zeros(600, dtype=np.float32), parts, memory=memory).any()
    np.testing.assert_array_equal(memory["powersgd"], before)
    spike = np.zeros(600, dtype=np.float32)
    spike[77] = 1  # only one direction remains
    round_trip(spike, parts, memory=memory)
    assert relative(round_trip(values, parts, memory=memory), values) < 1e-5
    memory["powersgd"][:] = 0
    assert relative(round_trip(values, parts, memory=memory), values) < 1e-5


@pytest.mark.parametrize("size", [1, 17, 18, 24, 25, 26, 600, 10_001])
def test_selected_values(size):
    """Selected values fill a nearly square matrix row by row; no Q is kept for the next update."""
    memory = {}
    values = normal(size)
    parts = selected(0, size, 3)
    decoded = round_trip(np.append(values, [1, 2, 3]).astype(np.float32), parts, 2, memory)
    assert not memory
    assert decoded[-3:].tolist() == [1, 2, 3]
    scales, p, q, raw = (spec.size for spec in PowerSgd().specs(parts))
    cols = int(np.ceil(np.sqrt(size)))
    rows = int(np.ceil(size / cols))
    if 2 * (rows + cols) < size:
        assert (scales, p, q, raw) == (1, 2 * rows, 2 * cols, 3)
        assert relative(decoded[:-3], values) < 1
        pattern = np.outer(np.arange(rows) + 1, np.arange(cols) - 0.5).astype(np.float32).ravel()
        decoded = round_trip(pattern[:size], selected(size))
        # The padding of the last row raises the rank to 2.
        assert relative(decoded, pattern[:size]) < 1e-5
    else:
        assert (scales, p, q, raw) == (0, 0, 0, size + 3)
        np.testing.assert_array_equal(decoded[:-3], values)


@pytest.mark.parametrize(
    ("stream", "value"),
    [
        *((s, v) for s in range(4) for v in (np.nan, np.inf, -np.inf)),
        *[(0, -1.0), (0, -0.0), (1, 2.1), (1, -2.1), (2, 4e4), (2, -4e4)],
    ],
)
def test_numbers_that_no_encoder_produces(stream, value):
    parts = parts_of((20, 30), (5,))
    streams = list(PowerSgd().encode(normal(605), parts, step_of(0)))
    streams[stream][-1] = value
    with pytest.raises(PayloadError, match="payload holds"):
        PowerSgd().decode(streams, parts)


@pytest.mark.parametrize("rank", [1, 64])
@pytest.mark.parametrize("scale", [MOST, MOST / 1e4])
def test_the_greatest_numbers_give_finite_values(rank, scale):
    parts = parts_of((200, 300))
    for sign in (1, -1):
        fill = (scale, 2.0, sign * 2.0**15, 0.0)
        specs = PowerSgd(rank).specs(parts)
        streams = [np.full(s.size, v, dtype=s.dtype) for s, v in zip(specs, fill, strict=True)]
        assert (PowerSgd(rank).decode(streams, parts) == np.float32(sign * MOST)).all()
