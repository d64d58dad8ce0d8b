"""The entropy coder restores every stream close to its entropy, and refuses other bytes."""

import time
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pcodec import ChunkConfig, DeltaSpec, ModeSpec
from pcodec.wrapped import FileCompressor

from edgewire.compression.base import Kind, PayloadError, Spec
from edgewire.compression.coders.entropy import Entropy
from edgewire.compression.coders.zstd import zstd

CODER = Entropy()
PCODEC, BITMAP, RICE = b"\x01", b"\x02", 32
KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
U4 = np.dtype("<u4")
DTYPES = {Kind.LEVELS: ["i1", "u1"], Kind.FLOATS: ["<f4", "<f2", "<u2"], Kind.BYTES: ["u1"]}


def index_spec(count: int, bound: int) -> Spec:
    return Spec(Kind.INDICES, U4, count, bound)


def spec_of(data: np.ndarray, kind: Kind = Kind.LEVELS) -> Spec:
    return Spec(kind, data.dtype, len(data), 243 if data.dtype == np.uint8 else 0)


def check_round_trip(data: np.ndarray, spec: Spec) -> bytes:
    """Encode a stream, assert that decoding returns it, and return the encoded bytes."""
    before = data.copy()
    data.flags.writeable = False
    coded = CODER.encode(data, spec)
    assert data.tobytes() == before.tobytes()
    if not len(data):
        assert coded is None
        return b""
    decoded = CODER.decode(memoryview(coded), spec)
    assert decoded.dtype == data.dtype
    assert decoded.shape == data.shape
    assert decoded.tobytes() == data.tobytes()
    assert decoded.flags.aligned
    return coded


def uniform(size: int, count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(size, count, replace=False, shuffle=False)).astype(U4)


def clustered(size: int, count: int) -> np.ndarray:
    """Return the top-k indices of values whose rows differ in scale, as in real updates."""
    draw = np.random.default_rng(1)
    rows = np.exp(1.2 * draw.standard_normal(-(-size // 256)))
    values = np.abs(draw.standard_normal(size)) * np.repeat(rows, 256)[:size]
    return np.sort(np.argpartition(values, size - count)[size - count :]).astype(U4)


def laplacian(width: float, size: int) -> np.ndarray:
    levels = np.rint(np.random.default_rng(2).laplace(0, width, size))
    return np.clip(levels, -127, 127).astype(np.int8)


def set_bytes(size: int, count: int) -> float:
    """Return the entropy in bytes of a random set of k indices out of n: n H(k/n)."""
    return entropy_bytes(np.array([count, size - count]))


def entropy_bytes(counts: np.ndarray) -> float:
    counts = counts[counts > 0]
    return float(counts @ np.log2(counts.sum() / counts)) / 8


def order_0(data: np.ndarray) -> float:
    return entropy_bytes(np.bincount(data.view(np.uint8)))


@given(st.data())
def test_any_index_set(data):
    size = data.draw(st.one_of(st.integers(0, 70), st.integers(1, 1 << 32)))
    some = st.lists(st.integers(0, max(size - 1, 0)), unique=True, max_size=min(size, 200))
    indices = np.array(sorted(data.draw(some)), dtype=U4)
    check_round_trip(indices, index_spec(len(indices), size))


@pytest.mark.parametrize("size", [1, 2, 8, 9, 1000, 8192, 8193, 300_000])
def test_index_sets_of_every_density(size):
    for count in sorted({1, size, size // 33, size // 20, size // 5, size // 3, size - size // 9}):
        if count:
            check_round_trip(uniform(size, count), index_spec(count, size))
            check_round_trip(np.arange(size - count, size, dtype=U4), index_spec(count, size))


@given(st.data())
def test_any_bytes(data):
    kind = data.draw(st.sampled_from(list(DTYPES)))
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES[kind])))
    units = data.draw(st.lists(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)))
    stream = np.frombuffer(b"".join(units) * data.draw(st.integers(1, 40)), dtype=dtype).copy()
    check_round_trip(stream, spec_of(stream, kind))


@pytest.mark.parametrize("name", ["i1", "u1", "<f4", "<f2", "<u2"])
def test_sizes_around_the_blocks(name):
    dtype = np.dtype(name)
    draw = np.random.default_rng(0)
    kind = Kind.LEVELS if dtype.itemsize == 1 else Kind.FLOATS
    for size in (*range(21), 131_072, 131_073, 280_000):
        noise = draw.integers(0, 256, size * dtype.itemsize, dtype=np.uint8)
        skewed = np.minimum(draw.geometric(0.7, size), 100).astype(dtype)
        for stream in (noise.view(dtype), skewed, np.zeros(size, dtype)):
            check_round_trip(stream, spec_of(stream, kind))


MANY = 1_000_000


@pytest.mark.parametrize(
    ("make", "size", "count", "share", "beyond"),
    [
        *((uniform, MANY, int(MANY * density), 1.025, 0)
          for density in (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.25, 0.3, 0.5)),
        *((uniform, size, count, 1.02, 3)
          for size in (61_706, 11_000_000) for count in (16, 64, 256, 1000, 2000)),
        *((clustered, MANY, int(MANY * density), 0.9, 0)
          for density in (0.003, 0.01, 0.1, 0.25, 0.4)),
    ],
)  # fmt: skip
def test_sets_are_near_the_entropy_of_uniform_sets_or_below(make, size, count, share, beyond):
    coded = check_round_trip(make(size, count), index_spec(count, size))
    assert len(coded) <= share * set_bytes(size, count) + beyond


@pytest.mark.parametrize(
    ("size", "times"), [(10_000, 1.09), (61_706, 1.04), (MANY, 1.024), (2 * MANY, 1.024)]
)
def test_uniform_sets_take_the_documented_multiple_of_their_entropy(size, times):
    for count in np.geomspace(100, size // 2, 24).astype(int):
        coded = CODER.encode(uniform(size, count), index_spec(count, size))
        assert len(coded) <= times * set_bytes(size, count)


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.05, 0.1, 0.17, 0.2, 0.3, 0.5, 0.66])
def test_ternary_levels_are_near_their_entropy(share):
    draw = np.random.default_rng(3)
    trits = (draw.random(1_000_000) < share) * (1 + draw.integers(0, 2, 1_000_000))
    packed = (trits.reshape(-1, 5) @ 3 ** np.arange(5)).astype(np.uint8)
    assert len(check_round_trip(packed, spec_of(packed))) <= 1.05 * entropy_bytes(
        np.bincount(trits)
    )


@pytest.mark.parametrize("levels", [1, 4, 7, 127])
def test_qsgd_levels_are_near_their_entropy(levels):
    draw = np.random.default_rng(4)
    buckets = draw.standard_normal((600, 512)).astype(np.float32)
    scaled = buckets / np.linalg.norm(buckets, axis=1, keepdims=True) * levels
    signed = np.floor(scaled + draw.random(scaled.shape)).astype(np.int8).reshape(-1)
    assert len(check_round_trip(signed, spec_of(signed))) <= 1.05 * order_0(signed)


def wrapped(data: np.ndarray, delta: DeltaSpec, mode: ModeSpec) -> bytes:
    """Return a stream as the coder encodes it, with any of pcodec's settings."""
    compressor = FileCompressor()
    config = ChunkConfig(delta_spec=delta, mode_spec=mode, enable_8_bit=True)
    chunk = compressor.chunk_compressor(data, config)
    return PCODEC + compressor.write_header() + chunk.write_meta() + chunk.write_page(0)


def refused(coded: bytes, spec: Spec, match: str = "payload holds") -> None:
    """Assert that decoding raises `PayloadError`, quickly and in little memory."""
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(PayloadError, match=match) as caught:
            CODER.decode(memoryview(coded), spec)
        assert tracemalloc.get_traced_memory()[1] < 2 * spec.nbytes + 128 * KILOBYTE
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started < 5


SMALL = np.minimum(np.random.default_rng(6).geometric(0.6, 5000), 200).astype(np.uint8)
SAMPLES = {
    "zstd": (laplacian(20, 5000), Kind.LEVELS, 0),
    "pcodec": (SMALL, Kind.LEVELS, 0),
    "planes": (np.random.default_rng(7).normal(size=3000).astype("<f2"), Kind.FLOATS, 0),
    "pcodec-floats": (np.linspace(1, 2, 400).astype("<f4"), Kind.FLOATS, 0),
    "pcodec-indices": (uniform(40_000, 4000), Kind.INDICES, 40_000),
    "bitmap": (uniform(40_000, 20_000), Kind.INDICES, 40_000),
    "rice": (uniform(40_000, 300), Kind.INDICES, 40_000),
}


@pytest.fixture(params=SAMPLES)
def sample(request) -> tuple[bytes, Spec]:
    data, kind, bound = SAMPLES[request.param]
    spec = Spec(kind, data.dtype, len(data), bound)
    coded = check_round_trip(data.copy(), spec)
    tag = {"zstd": 0, "planes": 0, "bitmap": 2}.get(request.param, 1)
    assert coded[0] >= RICE if request.param == "rice" else coded[0] == tag
    return coded, spec


def test_truncated_and_extended_streams_are_refused(sample):
    coded, spec = sample
    for length in {*range(min(len(coded), 40)), *range(0, len(coded), 211), len(coded) - 1}:
        refused(coded[:length], spec)
    for tail in (b"\0", b"\1", coded, bytes(20)):
        refused(coded + tail, spec)


def test_mutated(sample):
    coded, spec = sample
    draw = np.random.default_rng(8)
    accepted = 0
    tracemalloc.start()
    try:
        for _ in range(120):
            wrong = bytearray(coded)
            end = 40 if draw.random() < 0.6 else len(wrong)
            for place in draw.integers(min(end, len(wrong)), size=draw.integers(1, 5)).tolist():
                wrong[place : place + int(draw.integers(5))] = draw.bytes(draw.integers(1, 5))
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(PayloadError):
                decoded = CODER.decode(memoryview(wrong), spec)
                assert (decoded.dtype, decoded.shape) == (spec.dtype, (spec.size,))
                accepted += 1
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 2 * max(spec.nbytes, len(wrong)) + 128 * KILOBYTE
    finally:
        tracemalloc.stop()
    assert accepted < 100


@pytest.mark.parametrize("tag", [3, 31, 64, 255])
def test_unknown_tags(tag, sample):
    coded, spec = sample
    refused(bytes((tag,)) + coded[1:], spec, f"unknown coding {tag}")
    refused(b"", spec, "unknown coding")


def test_bitmaps_larger_than_their_indices():
    bitmap = BITMAP + zstd.compress(b"\x80" + bytes(MEGABYTE - 1))
    refused(bitmap, index_spec(1, 8 * MEGABYTE), "unknown coding 2")


@pytest.mark.parametrize("bits", [[], [0], [0, 1, 2, 3], [0, 1, 12], [12, 13, 14], [0, 13, 15]])
def test_bitmaps_of_other_sets(bits):
    chosen = np.zeros(16, dtype=np.uint8)
    chosen[bits] = 1
    refused(BITMAP + zstd.compress(np.packbits(chosen).tobytes()), index_spec(3, 12), "bitmap of")


def test_rice_codes_of_other_sets():
    def rice(low, lows, rest):
        parts = [np.packbits(np.array(bits, dtype=np.uint8)).tobytes() for bits in (lows, rest)]
        return bytes((RICE + low,)) + b"".join(parts)

    good = rice(2, [1, 1, 0, 1], [0, 1, 1])  # gaps 7 and 1
    assert CODER.decode(memoryview(good), index_spec(2, 10)).tolist() == [7, 9]
    refused(good, index_spec(2, 9), "beyond the model")
    refused(good + b"\0", index_spec(2, 10), "Rice codes of other than 2")
    for rest in ([0, 1], [1, 1, 1], [0] * 20, [0, 1] + [0] * 7 + [1], [1] * 800):
        count = 2 + (len(rest) == 10)
        refused(rice(2, [1] * 2 * count, rest), index_spec(count, 1 << 32), "Rice codes")
    many = rice(0, [], [1] * 4096)
    refused(many, index_spec(4096, 5000), "unknown coding")  # would need 8 times the memory
    refused(bytes((RICE + 31,)) + b"\xff" * 8000, index_spec(2048, 1 << 32), "Rice codes")


@pytest.mark.parametrize(
    ("delta", "mode"),
    [
        (DeltaSpec.try_lookback(), ModeSpec.classic()),
        (DeltaSpec.try_conv1(2), ModeSpec.classic()),
        (DeltaSpec.no_op(), ModeSpec.try_int_mult(7)),
    ],
)
def test_pcodec_modes_that_are_never_used(delta, mode):
    draw = np.random.default_rng(9)
    data = np.tile(7 * draw.integers(0, 1 << 20, 300), 10).astype(U4)
    coded = wrapped(data, delta, mode)
    assert coded[3] not in (0x00, 0x10)
    refused(coded, index_spec(3000, 1 << 28), "in a mode that is never used")
    plain = wrapped(data, DeltaSpec.no_op(), ModeSpec.classic())
    decoded = CODER.decode(memoryview(plain), index_spec(3000, 1 << 28))
    assert decoded.tobytes() == data.tobytes()  # the caller checks that the indices increase
