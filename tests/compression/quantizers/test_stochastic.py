"""QSGD and TernGrad decode to the given values on average.

Each check of many coordinates gives a false alarm with probability at most 1e-6. The bound is
Hoeffding's, with Bonferroni over the coordinates, so it is no approximation. The seeds are fixed.
"""

import numpy as np
import pytest

from edgewire.compression.base import TensorSlices
from edgewire.compression.quantizers.qsgd import Qsgd
from edgewire.compression.quantizers.ternary import Ternary
from tests.compression.quantizers.values import step_of

ALARM = 1e-6
LEAST = float(np.finfo(np.float32).smallest_subnormal)
TILES, SEEDS = 250, 24  # 6,000 draws for each coordinate
N = 1024

QSGDS = [
    Qsgd(levels, bucket, norm)
    for levels, bucket, norm in [
        (7, 512, "max"), (7, 512, "l2"), (1, 16, "max"), (1, 64, "l2"), (127, 64, "max"),
        (127, 64, "l2"),
    ]
]  # fmt: skip


def some_values() -> np.ndarray:
    """Return N normal values, some small or zero; N is a multiple of all bucket sizes."""
    draw = np.random.default_rng(1)
    values = draw.normal(size=N)
    values[::7] *= 1e-3
    values[::11] = 0
    values[5] = 4
    return values.astype(np.float32)


def means(quantizer, values: np.ndarray) -> np.ndarray:
    """Return (N,) means of the decoded values over many draws; all tiles have equal scales."""
    tiled = np.tile(values, TILES)
    parts = TensorSlices(np.array([0, len(tiled)]))
    total = np.zeros(len(values))
    for seed in range(SEEDS):
        streams = quantizer.encode(tiled, parts, step_of(seed))
        decoded = quantizer.decode(streams, parts)
        total += decoded.reshape(TILES, -1).mean(axis=0, dtype=np.float64)
    return total / SEEDS


def check_unbiased(found: np.ndarray, expected: np.ndarray, steps: np.ndarray) -> None:
    """Assert that `found`, means of decoded values, equal `expected` up to random errors.

    `steps`: for each coordinate, the distance of neighbouring levels. The check is made for each
    coordinate, and for the mean error of all coordinates.
    """
    draws = TILES * SEEDS
    error = (found - expected) / steps
    assert np.abs(error).max() <= np.sqrt(np.log(2 * len(error) / ALARM) / (2 * draws))
    pooled = np.sqrt(np.log(2 / ALARM) / (2 * draws * len(error)))  # 0.0011 of a step
    assert abs(error.mean()) <= pooled
    assert abs((error * np.sign(expected)).mean()) <= pooled
    assert (found[expected == 0] == 0).all()


def steps_of(quantizer: Qsgd, values: np.ndarray) -> np.ndarray:
    """Return (k,) float64: norm / levels of each value's bucket, as in the paper."""
    buckets = np.array_split(values.astype(np.float64), len(values) // quantizer.bucket)
    order = np.inf if quantizer.norm == "max" else 2
    norms = [np.linalg.norm(bucket, order) for bucket in buckets]
    return np.repeat(norms, quantizer.bucket) / quantizer.levels


@pytest.mark.parametrize("quantizer", QSGDS, ids=repr)
def test_qsgd_is_unbiased(quantizer):
    values = some_values()
    check_unbiased(means(quantizer, values), values, steps_of(quantizer, values))


@pytest.mark.parametrize("quantizer", QSGDS, ids=repr)
def test_qsgd_takes_a_neighbouring_level(quantizer):
    values = some_values()
    steps = steps_of(quantizer, values)
    parts = TensorSlices(np.array([0, N]))
    scales, levels = quantizer.encode(values, parts, step_of(0))
    np.testing.assert_allclose(np.repeat(scales, quantizer.bucket), steps, rtol=3e-7)
    assert (np.abs(levels - values / steps) < 1 + 1e-4).all()
    np.testing.assert_array_equal(
        quantizer.decode((scales, levels), parts),
        levels * np.repeat(scales, quantizer.bucket),
    )


@pytest.mark.parametrize("factor", [1e-37, 3e-41, 3e-45, 8e37])
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_qsgd_is_unbiased_at_the_ends_of_float32(factor, norm):
    values = (some_values() * factor).astype(np.float32)
    quantizer = Qsgd(7, 512, norm)
    # A norm beyond float32 is stored as float32's largest value; subnormal scales are rounded up.
    steps = np.minimum(steps_of(quantizer, values), np.finfo(np.float32).max / 7)
    steps = np.ceil(steps / LEAST) * LEAST
    check_unbiased(means(quantizer, values), values.astype(np.float64), steps)


@pytest.mark.parametrize("clip", [0.0, 2.5, 1.0])
def test_ternary_is_unbiased_for_clipped_values(clip):
    values = some_values()
    limit = np.abs(values).max()
    if clip:
        limit = min(limit, clip * np.sqrt(np.mean(values.astype(np.float64) ** 2)))
    clipped = np.clip(values.astype(np.float64), -limit, limit)
    check_unbiased(means(Ternary(clip), values), clipped, np.full(N, limit))
