"""Each quantizer of few bits follows its plain formula, also block by block."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import TensorSlices
from edgewire.compression.quantizers.bfloat16 import BFloat16
from edgewire.compression.quantizers.int4 import Int4
from edgewire.compression.quantizers.int8 import Int8
from edgewire.compression.quantizers.lloyd import Lloyd
from edgewire.compression.quantizers.scaling import BLOCK
from edgewire.compression.quantizers.sign import Sign
from edgewire.compression.quantizers.ternary import Ternary
from tests.compression.quantizers.values import LEAST, MOST, normal, parts_of, step_of, whole


def test_int8_is_the_plain_formula():
    segments = np.array([0, 40_000, 40_000, 150_000])
    values = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    scales, levels = Int8().encode(values, TensorSlices(segments), step_of(0))
    for start, stop, scale in zip(segments[:-1], segments[1:], scales, strict=True):
        part = values[start:stop]
        assert scale == (np.abs(part).max() / np.float32(127) if len(part) else 0)
        if len(part):
            np.testing.assert_array_equal(levels[start:stop], np.rint(part / scale))


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
    streams = BFloat16().encode(values, whole(values), step_of(0))
    decoded = BFloat16().decode(streams, whole(values))
    assert decoded.tobytes() == expected.tobytes()


@pytest.mark.parametrize("block", [16, 64, 77, 65536])
def test_int4_is_the_plain_formula(block):
    values = normal(BLOCK + 1001)
    parts = parts_of((500,), (len(values) - 500,))
    halves, packed = Int4(block).encode(values, parts, step_of(0))
    decoded = Int4(block).decode((halves, packed), parts)
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
    halves, _ = Int4().encode(values, whole(values), step_of(0))
    assert halves.tolist() == [bits]


@pytest.mark.parametrize("clip", [0.0, 0.5, 2.5])
def test_ternary_scales_are_those_of_each_tensor(clip):
    values = normal(150_000) * np.repeat(np.float32([1, 100]), [40_000, 110_000])
    parts = parts_of((40_000,), (0, 3), (110_000,))
    scales, packed = Ternary(clip).encode(values, parts, step_of(0))
    decoded = Ternary().decode((scales, packed), parts)
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
    streams = Ternary().encode(values, parts, step_of(0))
    np.testing.assert_array_equal(Ternary().decode(streams, parts), values)


@pytest.mark.parametrize("size", [1, 5, 65_534, 65_535, 65_536, 200_003])
def test_ternary_packing_of_any_size(size):
    values = np.random.default_rng(size).integers(-1, 2, size).astype(np.float32)
    values[-1] = 1
    streams = Ternary(0.0).encode(values, whole(values), step_of(0))
    np.testing.assert_array_equal(Ternary().decode(streams, whole(values)), values)


def side_means(part: np.ndarray) -> np.ndarray:
    exact = part.astype(np.float64)
    low, high = exact[exact < 0], exact[exact >= 0]
    return np.where(exact < 0, low.mean() if len(low) else 0, high.mean() if len(high) else 0)


COLUMNS = [
    ((7, 64), 7), ((7, 63), 1), ((448,), 1), ((), 1), ((3, 4, 4, 4), 3), ((4, 9), 1),
    ((0, 100), 1), ((100, 0), 1), ((2, BLOCK + 5), 2), ((BLOCK // 64 + 3, 64), BLOCK // 64 + 3),
    ((1, 3 * BLOCK), 1),
]  # fmt: skip


@pytest.mark.parametrize("means", ["tensor", "column"])
def test_sign_is_the_plain_formula(means):
    parts = parts_of(*(shape for shape, _ in COLUMNS))
    values = normal(int(parts.segments[-1])) + np.float32(0.3)
    streams = Sign(means).encode(values, parts, step_of(0))
    decoded = Sign(means).decode(streams, parts)
    groups = [groups if means == "column" else 1 for _, groups in COLUMNS]
    assert len(streams[0]) == 2 * sum(groups)
    for number, start, stop in zip(groups, parts.segments, parts.segments[1:], strict=False):
        if stop > start:
            for part, found in zip(
                values[start:stop].reshape(number, -1),
                decoded[start:stop].reshape(number, -1),
                strict=True,
            ):
                np.testing.assert_allclose(found, side_means(part), rtol=1e-6)
    np.testing.assert_array_equal(decoded >= 0, values >= 0)


def test_sign_of_selected_values_has_means_of_tensors():
    parts = parts_of((10, 100), (5,))
    values = normal(1005)
    expected = Sign("tensor").encode(values, parts, step_of(0))
    found = Sign("column").encode(values, TensorSlices(parts.segments), step_of(0))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        Sign("column").decode(found, TensorSlices(parts.segments)), Sign().decode(expected, parts)
    )


@pytest.mark.parametrize("value", [MOST, -MOST, 3e38, LEAST, -LEAST, -0.0])
def test_sign_means_at_the_ends_of_float32(value):
    values = np.full(1000, value, dtype=np.float32)
    streams = Sign().encode(values, whole(values), step_of(0))
    np.testing.assert_array_equal(Sign().decode(streams, whole(values)), values)
    assert not np.signbit(streams[0]).any() or value < 0


# The least squared error of a Gaussian's quantizer with 2, 4, 8 and 16 levels: Max 1960,
# "Quantizing for minimum distortion", table I.
GAUSSIAN = {1: 0.3634, 2: 0.1175, 4: 0.03454, 8: 0.009497}


def of_lloyd(values, magnitudes):
    quantizer, parts = Lloyd(magnitudes), parts_of((len(values),))
    streams = quantizer.encode(values, parts, step_of(0))
    return streams, quantizer.decode(streams, parts)


@pytest.mark.parametrize("magnitudes", GAUSSIAN)
def test_the_error_of_gaussian_values_is_the_least_possible(magnitudes):
    values = normal(4 * BLOCK + 3)
    _, decoded = of_lloyd(values, magnitudes)
    error = np.sum((values - decoded) ** 2, dtype=float) / np.sum(values**2, dtype=float)
    assert error == pytest.approx(GAUSSIAN[magnitudes], rel=0.02)


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=60),
    st.sampled_from([1, 2, 4, 8]),
)
def test_sizes_are_means_and_each_value_has_the_nearest(numbers, magnitudes):
    values = np.array(numbers, dtype=np.float32)
    streams, decoded = of_lloyd(values, magnitudes)
    sizes = streams[0].astype(float)
    np.testing.assert_array_equal(np.signbit(decoded), np.signbit(values))
    for size in set(np.abs(decoded).tolist()):
        group = np.abs(values[np.abs(decoded) == size]).astype(float)
        assert size == pytest.approx(group.mean(), rel=1e-5)
    # A bin of the histogram is up to 1/128 wide, so a value near a bound may have the other size.
    exact = np.abs(values).astype(float)
    nearest = np.abs(exact[:, None] - sizes).min(axis=1)
    assert (np.abs(exact - np.abs(decoded)) <= nearest + exact / 64 + 1e-38).all()
