"""TernGrad: scales, packing, hostile streams."""

import numpy as np
import pytest

from edgewire.compression.base import Rng
from edgewire.compression.quantizers.ternary import Ternary
from tests.compression.quantizers.values import normal, parts_of, whole


@pytest.mark.parametrize("clip", [0.0, 0.5, 2.5])
def test_ternary_scales_are_those_of_each_tensor(clip):
    values = normal(150_000) * np.repeat(np.float32([1, 100]), [40_000, 110_000])
    parts = parts_of((40_000,), (0, 3), (110_000,))
    scales, packed = Ternary(clip).encode(values, parts, {}, Rng(0, 1))
    decoded = Ternary.decode((), (scales, packed), parts)
    for tensor, scale in zip((0, 2), scales[[0, 2]], strict=True):
        part = slice(*parts.segments[tensor : tensor + 2])
        exact = values[part].astype(np.float64)
        expected = np.abs(exact).max()
        if clip:
            expected = min(expected, clip * np.sqrt(np.mean(exact**2)))
        assert scale == pytest.approx(expected, rel=1e-6)
        assert set(np.unique(decoded[part])) == {-scale, 0, scale}
        sent = decoded[part] != 0
        np.testing.assert_array_equal(np.sign(decoded[part][sent]), np.sign(exact[sent]))
        assert sent[np.abs(exact) >= expected].all()
    assert scales[1] == 0


def test_ternary_keeps_tensors_of_one_entry():
    """TernGrad clips at a multiple of the root mean square, which is not 0 for a single entry."""
    values = np.float32([0.5, -2, 3, 3, 3])
    parts = parts_of((), (1,), (3,))
    streams = Ternary().encode(values, parts, {}, Rng(0, 1))
    np.testing.assert_array_equal(Ternary.decode((), streams, parts), values)


@pytest.mark.parametrize("size", [1, 5, 65_534, 65_535, 65_536, 200_003])
def test_ternary_packing_of_any_size(size):
    values = np.random.default_rng(size).integers(-1, 2, size).astype(np.float32)
    values[-1] = 1
    streams = Ternary(0.0).encode(values, whole(values), {}, Rng(0, 1))
    np.testing.assert_array_equal(Ternary.decode((), streams, whole(values)), values)
