"""Streams for the tests of coders, and their entropy in bytes."""

import numpy as np

from edgewire.compression.base import Kind, Spec
from edgewire.compression.coders.entropy import Entropy

CODER = Entropy()
ZSTD, PCODEC, BITMAP, RICE = b"\x00", b"\x01", b"\x02", 32
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
