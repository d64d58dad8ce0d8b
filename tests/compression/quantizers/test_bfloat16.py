"""bfloat16: rounding, also of the largest float32 values."""

import numpy as np
import torch

from edgewire.compression.base import Rng
from edgewire.compression.quantizers.bfloat16 import BFloat16
from edgewire.compression.quantizers.scaling import BLOCK
from tests.compression.quantizers.values import whole


def test_bfloat16_rounds_as_torch_does():
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 1 << 32, 2 * BLOCK + 3, dtype=np.uint32)
    bits[::3] &= 0xFFFF8000  # halfway between two values
    bits[:8] = [0, 1 << 31, 1, 0x8000, 0x8001, 0x7F7F7FFF, 0x007FFFFF, 0x80008000]
    bits[8:308] = np.arange(0x7F7F0000, 0x7F800000, 219)[:300]  # these would round to infinity
    bits[308:608] = bits[8:308] | 1 << 31
    values = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    expected = np.clip(expected, -3.3895313892515355e38, 3.3895313892515355e38)
    streams = BFloat16().encode(values, whole(values), {}, Rng(0, 1))
    decoded = BFloat16.decode((), streams, whole(values))
    assert decoded.tobytes() == expected.tobytes()
