"""The coded sizes of Gaussian values are those that docs/algorithms.md gives."""

import pytest

from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from tests.compression.quantizers.values import normal

SIZE = 100_000


@pytest.mark.parametrize(
    ("quantizer", "coder", "options", "bits"),
    [
        ("int8", "zstd", {}, 8 * 0.86),
        ("int8", "entropy", {}, 8 * 0.86),
        ("qsgd", "entropy", {"levels": 7}, 3.3),
    ],
)
def test_gaussian_values_take_the_documented_bits(quantizer, coder, options, bits):
    codec = make_codec(quantizer=quantizer, coder=coder, **options)
    payload = codec.encode(normal(SIZE), Layout(("weight",), ((SIZE,),), ("float32",)), seed=1)
    assert 8 * len(payload) / SIZE == pytest.approx(bits, rel=0.03)
