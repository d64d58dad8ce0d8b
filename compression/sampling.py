"""What selections share: samples that tell of a whole vector, random bits, a fair end to ties."""

import math
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from .buffers import Scalar

BLOCK = 1 << 17  # entries worked on at a time; with half of it calls cost 8 % more
TINY = 1 << 11  # a sample of so few is not worth it
SAMPLE = 1 << 16
STEPS = 1 << 16  # what 16 random bits can be


def sample(values: NDArray[Scalar], size: int = 0) -> NDArray[Scalar]:
    """Return (size,) of (n,) values, one at random from each of so many parts: no period fits."""
    n = len(values)
    size = size or min(int(n ** (2 / 3)), SAMPLE)  # more would cost more than it saves
    return values.take(_places(n, size), mode="clip")


def rank(size: int, share: float, side: int = 1) -> int:
    """Return how many of a sample are a share of the whole, 3 sigma more or (``side`` -1) less."""
    return math.floor(size * share + side * (3 * math.sqrt(size * share * (1 - share)) + 3))


def bits16(size: int, generator: np.random.Generator) -> NDArray[np.uint16]:
    """Return (size,) uint16, all values equally likely; 64 bits at a time, twice as fast."""
    return generator.integers(0, 1 << 64, -(-size // 4), dtype=np.uint64).view(np.uint16)[:size]


def keep(keys: NDArray[np.int32] | NDArray[np.int64], k: int, least: int) -> NDArray[np.bool]:
    """Return (m,) bool: the k largest of (m,) keys, ``least`` being the k-th; of ties the first."""
    mask: NDArray[np.bool] = np.greater_equal(keys, least)
    surplus = np.count_nonzero(mask) - k
    if surplus:
        mask[(keys == least).nonzero()[0][-surplus:]] = False
    return mask


@lru_cache(maxsize=64)
def _places(n: int, size: int) -> NDArray[np.intp]:
    return (_offsets()[:size] * (n / size)).astype(np.intp)


@cache
def _offsets() -> NDArray[np.float64]:
    return np.arange(SAMPLE) + np.random.default_rng(0).random(SAMPLE)
