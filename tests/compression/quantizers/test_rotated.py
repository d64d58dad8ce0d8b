"""DRIVE and EDEN: the rotation, the papers' figures, the error bound, exact levels."""

import numpy as np
import pytest

from edgewire.compression.quantizers.drive import Drive
from edgewire.compression.quantizers.eden import UNIT, Eden, levels_of
from edgewire.compression.quantizers.rotation import CHUNK, random_bits, transform
from tests.compression.quantizers.values import MOST, normal, selected, step_of

DRIVE = Drive()


def round_trip(values, quantizer=DRIVE, seed=0):
    parts = selected(len(values))
    streams = quantizer.encode(values, parts, step_of(seed))
    return quantizer.decode(streams, parts)


def nmse(decoded, values):
    values = values.astype(np.float64)
    return ((decoded - values) ** 2).sum() / (values**2).sum()


def philox(key, counter):
    """Return one block of Philox4x64-10 (Salmon et al., 2011): four words."""
    mask = (1 << 64) - 1
    words = [counter, 0, 0, 0]
    keys = [key, 0]
    for _ in range(10):
        low, high = words[0] * 0xD2E7470EE14C6C93, words[2] * 0xCA5A826395121157
        words = [high >> 64 ^ words[1] ^ keys[0], high & mask,
                 low >> 64 ^ words[3] ^ keys[1], low & mask]  # fmt: skip
        keys = [keys[0] + 0x9E3779B97F4A7C15 & mask, keys[1] + 0xBB67AE8584CAA73B & mask]
    return words


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567890, 2**64 - 1])
def test_the_random_bits_are_philox(seed):
    words = [word for counter in (1, 2, 3) for word in philox(seed, counter)]
    expected = b"".join(word.to_bytes(8, "little") for word in words)
    assert random_bits(seed, 96).tobytes() == expected
    assert random_bits(seed, 13).tobytes() == expected[:13]
    assert random_bits(seed, 0).tobytes() == b""


def hadamard(size, columns=slice(None)):
    index = np.arange(size)
    return 1 - 2 * (np.bitwise_count(index[:, None] & index[columns]) & 1).astype(np.float32)


@pytest.mark.parametrize("size", [8, 64, 128, 256, 2048, 8192])
def test_the_transform_is_hadamards(size):
    rows = np.random.default_rng(0).integers(-9, 9, (3, size)).astype(np.float32)
    product, other = transform(rows.copy(), np.empty_like(rows))
    columns = [0, 1, 2, size // 2, size - 1]
    np.testing.assert_array_equal(product[:, columns], rows @ hadamard(size, columns))
    back, _ = transform(product, other)
    np.testing.assert_array_equal(back, rows * size)


def test_decoding_by_hand():
    """A decoder written from docs/payload.md gives the same values (5 and 11 entries)."""
    parts = selected(5, 11)
    seed = np.array([77], dtype="<u8")
    scales = np.array([0.5, 3], dtype="<f4")
    bits = np.array([0b10110001, 0b11110000, 0b00000111], dtype="u1")
    word = philox(77, 1)[0]
    expected, at = [], 0
    for size, length, scale in ((8, 5, 0.5), (16, 11, 3)):
        signs = [1 - 2 * (int(bits[i // 8]) >> i % 8 & 1) for i in range(at, at + size)]
        random = [1 - 2 * (word >> i & 1) for i in range(at, at + size)]
        expected += (scale * np.array(random) * (hadamard(size) @ signs))[:length].tolist()
        at += size
    assert Drive().decode((seed, scales, bits), parts).tolist() == expected


def drawn(kind, size=1 << 16):
    draw = np.random.default_rng(3)
    values = {
        "gauss": draw.normal(size=size),
        "log-normal": draw.lognormal(size=size) * draw.choice([-1, 1], size),
        "laplace": draw.laplace(size=size),
        "t3": draw.standard_t(3, size),
    }[kind]
    return (1e-3 * values).astype(np.float32)


def test_scales_are_finite():
    most, over = np.full(1, MOST, dtype=np.float32), np.full(1, 8.000001, dtype=np.float32)
    assert Drive().scales_of(most, over, np.full(1, 8, dtype=np.float32), 8).tolist() == [MOST]


def test_the_greatest_scale_gives_finite_values():
    parts = selected(100)
    seed, _, bits = Drive().encode(drawn("gauss", 100), parts, step_of(0))
    greatest = np.array([MOST], dtype="<f4")
    assert np.abs(Drive().decode((seed, greatest, bits), parts)).max() == np.float32(MOST)


# The paper's squared errors for large chunks, and those of the best scale (Max 1960, table I).
PAPER = {1: 0.571, 2: 0.133, 3: 0.0358, 4: 0.0096}
BEST = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}


@pytest.mark.parametrize("bits", PAPER)
@pytest.mark.parametrize(("scale", "errors"), [("unbiased", PAPER), ("least", BEST)])
def test_the_errors_are_those_of_the_papers(bits, scale, errors):
    values = normal(32 * CHUNK) ** 3  # far from normal, until it is rotated
    decoded = round_trip(values, Eden(bits, scale))
    assert nmse(decoded, values) == pytest.approx(errors[bits], rel=0.05)
    if scale == "unbiased":
        product = np.dot(values.astype(float), decoded.astype(float))
        assert product == pytest.approx(
            np.dot(values.astype(float), values.astype(float)), rel=1e-5
        )


@pytest.mark.parametrize("scale", ["unbiased", "least"])
def test_one_bit_is_drive(scale):
    values = normal(2 * CHUNK + 77)
    drive, eden = round_trip(values, Drive(scale)), round_trip(values, Eden(1, scale))
    np.testing.assert_allclose(eden, drive, rtol=1e-5)


@pytest.mark.parametrize("bits", PAPER)
def test_sums_of_levels_are_exact(bits):
    levels = levels_of(bits)
    np.testing.assert_array_equal(levels, np.rint(levels))
    np.testing.assert_array_equal(levels, -levels[::-1])
    assert (np.diff(levels) > 0).all()
    assert levels[-1] * CHUNK < 2**24  # float32 has all integers up to here
    assert 2.5 < levels_of(4)[-1] / UNIT < 3
