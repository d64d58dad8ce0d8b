"""Layouts and updates, and toy methods that use what the built-in ones do not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from compression import Codec, Layout, registry
from compression.coders.raw import Raw
from compression.coders.zstd import Zstd
from compression.stages import Kind, PayloadError, Quantizer, Selection, Sparsifier, Spec

LENET = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,)]
LENET += [(10, 84), (10,)]


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    names = tuple(f"layer{i}.weight" for i in range(len(shapes)))
    return Layout(names, tuple(shapes), ("float32",) * len(shapes))


@pytest.fixture(scope="session")
def make_layout() -> Callable[[list[tuple[int, ...]]], Layout]:
    return layout_of


@pytest.fixture(scope="session")
def lenet() -> Layout:
    return layout_of(LENET)


@pytest.fixture(scope="session")
def mixed() -> Layout:
    """Small, with a 0-d and an empty tensor, several dtypes and names outside of ASCII."""
    return Layout(
        ("conv.weight", "bn.num_batches_tracked", "leer", "größe", "fc.weight"),
        ((4, 3, 3, 3), (), (0, 7), (5,), (11, 13)),
        ("float32", "int64", "float32", "float16", "float32"),
    )


@pytest.fixture(scope="session")
def update_for() -> Callable[[Layout], np.ndarray]:
    """Heavy-tailed values of another size in each tensor, as real updates are."""

    def make(layout: Layout) -> np.ndarray:
        draw = np.random.default_rng(7)
        values = draw.standard_t(3, size=layout.size) * 1e-3
        sizes = 10.0 ** (np.arange(len(layout)) % 4)
        return (values * np.repeat(sizes, np.diff(layout.offsets))).astype(np.float32)

    return make


@pytest.fixture(scope="session")
def reseal() -> Callable[[bytes], bytes]:
    """Give damaged bytes a right checksum, to reach what stands behind it."""

    def seal(body: bytes) -> bytes:
        return body + xxh3_64_intdigest(body).to_bytes(8, "little")

    return seal


@dataclass(frozen=True)
class Largest(Sparsifier):
    """A share of the entries by magnitude, with a residual: what top-k will look like."""

    name: ClassVar[str] = "toy-largest"
    id: ClassVar[int] = 250

    density: float = 0.25

    def select(self, update, layout, memory, rng):
        memory = {} if memory is None else memory
        residual = memory.setdefault("residual", np.zeros(layout.size, dtype=np.float32))
        residual += update
        count = int(self.density * layout.size)
        order = np.argsort(-np.abs(residual), kind="stable")
        indices = np.sort(order[:count]).astype(np.uint32)
        values = residual[indices]
        residual[indices] = 0
        return Selection(indices, values)


@dataclass(frozen=True)
class Bucketed(Quantizer):
    """Stochastic rounding in buckets across tensors: what QSGD will look like."""

    name: ClassVar[str] = "toy-bucketed"
    id: ClassVar[int] = 250

    bucket: int = 16

    def params(self):
        return (self.bucket,)

    def encode(self, values, segments, rng):
        count = -(-len(values) // self.bucket)
        padded = np.zeros(count * self.bucket, dtype=np.float32)
        padded[: len(values)] = values
        rows = padded.reshape(count, self.bucket)
        scales = np.abs(rows).max(axis=1, initial=0).astype("<f4")
        shifted = rows / np.where(scales, scales, 1)[:, None] * 100
        levels = np.floor(shifted + rng.generator.random(rows.shape)).astype("i1")
        return scales, levels.reshape(-1)[: len(values)].copy()

    @classmethod
    def specs(cls, params, segments):
        if len(params) != 1 or not params[0]:
            raise PayloadError("payload holds no bucket size")
        count = int(segments[-1])
        return (
            Spec(Kind.FLOATS, np.dtype("<f4"), -(-count // params[0])),
            Spec(Kind.LEVELS, np.dtype("i1"), count),
        )

    @classmethod
    def decode(cls, params, streams, segments):
        scales, levels = streams
        if not (np.isfinite(scales).all() and (np.abs(scales) < 1e30).all()):
            raise PayloadError("payload holds a bad scale")
        bucket = min(params[0], max(len(levels), 1))
        values = np.repeat(scales, bucket)[: len(levels)] * levels
        return (values / np.float32(100)).astype(np.float32)

    def error_bound(self, values, segments):
        return np.full(len(values), 0.02 * np.abs(values).max(initial=0))


@pytest.fixture
def toy_codec(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Codec]:
    """Build codecs from the toys, which are registered for one test only."""
    registry.names("sparsifier"), registry.names("quantizer")
    monkeypatch.setitem(registry._registered["sparsifier"], Largest.name, Largest)
    monkeypatch.setitem(registry._registered["quantizer"], Bucketed.name, Bucketed)

    def make(coded: bool = False, density: float = 0.25) -> Codec:
        return Codec(Largest(density), Bucketed(), Zstd() if coded else Raw())

    return make
