"""int4: the formula, scales, hostile streams."""

import numpy as np
import pytest

from edgewire.compression.base import Rng
from edgewire.compression.quantizers.int4 import Int4
from edgewire.compression.quantizers.scaling import BLOCK
from tests.compression.quantizers.values import normal, parts_of, whole


@pytest.mark.parametrize("block", [16, 64, 77, 65536])
def test_int4_is_the_plain_formula(block):
    values = normal(BLOCK + 1001)
    parts = parts_of((500,), (len(values) - 500,))
    halves, packed = Int4(block).encode(values, parts, {}, Rng(0, 1))
    decoded = Int4.decode((block,), (halves, packed), parts)
    nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1).astype(int)
    levels = np.where(nibbles > 7, nibbles - 16, nibbles)[: len(values)]
    for number, start in enumerate(range(0, len(values), block)):
        part = values[start : start + block]
        most = float(np.abs(part).max() / np.float32(7))
        unit = 2.0 ** (np.floor(np.log2(most)) - 7)  # the spacing of bfloat16 at this magnitude
        scale = np.ceil(most / unit) * unit
        assert halves[number] == np.float32(scale).view(np.uint32) >> 16
        expected = np.rint(part / np.float32(scale))
        np.testing.assert_array_equal(levels[start : start + block], expected)
        np.testing.assert_array_equal(decoded[start : start + block], expected * scale)


@pytest.mark.parametrize(
    ("largest", "bits"), [(7, 0x3F80), (np.nextafter(np.float32(7), 9), 0x3F81)]
)
def test_int4_scales_are_rounded_up(largest, bits):
    values = np.float32([0, -largest])
    halves, _ = Int4().encode(values, whole(values), {}, Rng(0, 1))
    assert halves.tolist() == [bits]
