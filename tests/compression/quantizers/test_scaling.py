"""Blocks of entries that share work, and the formula of int8."""

import numpy as np

from edgewire.compression.base import Rng, TensorSlices
from edgewire.compression.quantizers.int8 import Int8
from edgewire.compression.quantizers.scaling import BLOCK, blocks


def test_blocks_cover_everything_once():
    segments = np.cumsum([0, 3, 0, BLOCK, 2 * BLOCK + 5, 0, 1, BLOCK - 9, 0])
    covered = np.zeros(segments[-1], dtype=int)
    for block in blocks(segments):
        assert 0 < block.whole.stop - block.whole.start <= BLOCK
        for tensor, whole, here in block.pieces:
            covered[whole] += 1
            assert segments[tensor] <= whole.start < whole.stop <= segments[tensor + 1]
            assert whole.start - here.start == block.whole.start
            assert whole.stop - here.stop == block.whole.start
    assert (covered == 1).all()


def test_int8_is_the_plain_formula():
    segments = np.array([0, 40_000, 40_000, 150_000])
    values = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    scales, levels = Int8().encode(values, TensorSlices(segments), {}, Rng(0, 1))
    for start, stop, scale in zip(segments[:-1], segments[1:], scales, strict=True):
        part = values[start:stop]
        assert scale == (np.abs(part).max() / np.float32(127) if len(part) else 0)
        if len(part):
            np.testing.assert_array_equal(levels[start:stop], np.rint(part / scale))
