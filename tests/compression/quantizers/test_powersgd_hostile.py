"""PowerSGD refuses ranks, parameters and values that no encoder produces, in little memory."""

import tracemalloc

import numpy as np
import pytest

from compression.base import PayloadError, Rng
from compression.quantizers.powersgd import PowerSgd
from tests.compression.quantizers.values import MOST, normal, parts_of, selected

# Codec.encode and Codec.decode suppress these warnings for all methods.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("rank", [0, 65, 1 << 40])
def test_ranks_that_no_encoder_produces(rank):
    parts = parts_of((20, 30))
    with pytest.raises(PayloadError, match="rank"):
        PowerSgd.specs((rank,), parts)
    with pytest.raises(PayloadError, match="rank"):
        PowerSgd.decode((rank,), [np.zeros(0, dtype="<f4")] * 4, parts)
    with pytest.raises(ValueError, match="from 1 to 64"):
        PowerSgd(rank)


@pytest.mark.parametrize("params", [(), (2, 2)])
def test_a_wrong_number_of_parameters(params):
    with pytest.raises(PayloadError, match="quantizer parameters"):
        PowerSgd.specs(params, parts_of((20, 30)))


@pytest.mark.parametrize(
    ("stream", "value"),
    [
        *((s, v) for s in range(4) for v in (np.nan, np.inf, -np.inf)),
        *[(0, -1.0), (0, -0.0), (1, 2.1), (1, -2.1), (2, 4e4), (2, -4e4)],
    ],
)
def test_numbers_that_no_encoder_produces(stream, value):
    parts = parts_of((20, 30), (5,))
    streams = list(PowerSgd().encode(normal(605), parts, {}, Rng(0, 1)))
    streams[stream][-1] = value
    with pytest.raises(PayloadError, match="payload holds"):
        PowerSgd.decode((2,), streams, parts)


@pytest.mark.parametrize("rank", [1, 64])
@pytest.mark.parametrize("scale", [MOST, MOST / 1e4])
def test_the_greatest_numbers_give_finite_values(rank, scale):
    parts = parts_of((200, 300))
    for sign in (1, -1):
        fill = (scale, 2.0, sign * 2.0**15, 0.0)
        specs = PowerSgd.specs((rank,), parts)
        streams = [np.full(s.size, v, dtype=s.dtype) for s, v in zip(specs, fill, strict=True)]
        assert (PowerSgd.decode((rank,), streams, parts) == np.float32(sign * MOST)).all()


@pytest.mark.parametrize(
    ("rank", "parts"),
    [
        (1, parts_of((3, 30_000))),
        (2, parts_of((3, 30_000), (4,))),
        (63, parts_of((128, 128))),
        (2, parts_of((20_000, 5))),
        (1, parts_of((16_384,))),
        (1, selected(65_537)),
        (2, parts_of(*[(6, 5)] * 500)),
    ],
    ids=range(7),
)
def test_decoding_needs_little_memory(rank, parts):
    streams = [np.ones(s.size, dtype=s.dtype) for s in PowerSgd.specs((rank,), parts)]
    tracemalloc.start()
    PowerSgd.decode((rank,), streams, parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    allowed = 2.1 * 4 * int(parts.segments[-1]) + (1 << 17) + 600 * len(parts.segments)
    assert peak + sum(stream.nbytes for stream in streams) <= allowed
