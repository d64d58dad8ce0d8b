"""The entropy coder refuses bytes that no encoder produces."""

import time
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from pcodec import ChunkConfig, DeltaSpec, ModeSpec
from pcodec.wrapped import FileCompressor

from edgewire.compression.base import Kind, PayloadError, Spec
from edgewire.compression.coders.zstd import zstd
from tests.compression.coders.streams import (
    BITMAP,
    CODER,
    KILOBYTE,
    MEGABYTE,
    PCODEC,
    RICE,
    U4,
    ZSTD,
    check_round_trip,
    index_spec,
    laplacian,
    spec_of,
    uniform,
)


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


def test_a_wrong_number_of_entries(sample):
    coded, spec = sample
    for size in (0, 1, spec.size // 2, spec.size - 1, spec.size + 1, 2 * spec.size, 40 * spec.size):
        other = spec._replace(size=size, bound=max(spec.bound, size) if spec.bound else 0)
        try:
            decoded = CODER.decode(memoryview(coded), other)
        except PayloadError:
            continue
        # pcodec stores no exact count: a decoder may accept bytes of one entry more or less.
        assert coded[:1] == PCODEC
        assert decoded.shape == (size,)


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


@pytest.mark.parametrize("tag", [ZSTD, BITMAP])
def test_zstd_bombs(tag):
    bomb = tag + zstd.compress(bytes(64 * MEGABYTE), 1)
    spec = index_spec(20_000, 40_000) if tag == BITMAP else spec_of(np.zeros(20_000, np.int8))
    refused(bomb, spec, "broken zstd frame|of another length|many blocks")


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
