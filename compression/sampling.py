"""Helpers to select coordinates: samples of a vector, random 16-bit numbers, choice among ties."""

import math
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from .buffers import Scalar

BLOCK = 1 << 17  # entries per block; with half as many, functions take 8 % more time
TINY = 1 << 11  # a vector of at most TINY entries is not sampled, because that would not save time
SAMPLE = 1 << 16  # the most entries in a sample
STEPS = 1 << 16  # number of different values of 16 random bits


def sample(values: NDArray[Scalar], size: int = 0) -> NDArray[Scalar]:
    """Return a sample (size,) of (n,) values: one random value from each of ``size`` equal parts.

    The positions are random, because a regular stride could coincide with a period of the values.
    """
    n = len(values)
    size = size or min(int(n ** (2 / 3)), SAMPLE)  # a larger sample would cost more than it saves
    return values.take(_places(n, size), mode="clip")


def rank(size: int, share: float, side: int = 1) -> int:
    """Return the rank in a sample that corresponds to ``share``, moved by 3 standard deviations.

    ``side``: 1 moves it up, -1 down. ``size``: entries of the sample.
    """
    return math.floor(size * share + side * (3 * math.sqrt(size * share * (1 - share)) + 3))


def bits16(size: int, generator: np.random.Generator) -> NDArray[np.uint16]:
    """Return (size,) uniform random uint16, drawn 64 bits at a time in half of the time."""
    return generator.integers(0, 1 << 64, -(-size // 4), dtype=np.uint64).view(np.uint16)[:size]


def keep(keys: NDArray[np.int32] | NDArray[np.int64], k: int, least: int) -> NDArray[np.bool]:
    """Return an (m,) mask of the k largest of (m,) keys; among equal keys the first are selected.

    ``least``: the k-th largest key.
    """
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
