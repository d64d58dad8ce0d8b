"""QSGD: extreme float32 values, hostile streams."""

import numpy as np
import pytest

from compression.base import PayloadError, Rng
from compression.quantizers.qsgd import Qsgd
from tests.compression.quantizers.values import LEAST, MOST, parts_of, whole

# Codec.encode and Codec.decode suppress these warnings for all methods.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("scale", [-1.0, -0.0, np.nan, np.inf, MOST / 6.9])
def test_qsgd_refuses_bad_scales(scale):
    streams = (np.array([scale], dtype="<f4"), np.array([0, 1], dtype="i1"))
    with pytest.raises(PayloadError, match="scale"):
        Qsgd.decode((7, 16), streams, parts_of((2,)))


@pytest.mark.parametrize(("top", "level"), [(7, 8), (7, -8), (1, 127), (127, -128)])
def test_qsgd_refuses_levels_beyond_the_highest(top, level):
    streams = (np.ones(1, dtype="<f4"), np.array([0, level], dtype="i1"))
    with pytest.raises(PayloadError, match=f"level beyond {top}"):
        Qsgd.decode((top, 16), streams, parts_of((2,)))


@pytest.mark.parametrize("largest", [LEAST, 10 * LEAST, 1e-40, 1e-36, 1.0, 3e38, MOST])
@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("levels", [1, 7, 127])
def test_qsgd_at_extreme_scales(levels, norm, largest):
    """Decoded values are finite, with no larger error than the formula and float32 allow."""
    values = (np.linspace(-1, 1, 64) * largest).astype(np.float32)
    quantizer = Qsgd(levels, 64, norm)
    streams = quantizer.encode(values, whole(values), {}, Rng(0, 1))
    decoded = quantizer.decode((levels, 64), streams, whole(values)).astype(np.float64)
    length = min(np.linalg.norm(values.astype(np.float64), 2 if norm == "l2" else np.inf), MOST)
    assert np.abs(decoded - values).max() <= 1.001 * max(length / levels, LEAST) + LEAST
