"""Values and parts that quantizers are tried on."""

import numpy as np

from compression.stages import Parts

MOST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)


def parts_of(*shapes: tuple[int, ...]) -> Parts:
    sizes = [int(np.prod(shape)) for shape in shapes]
    return Parts(np.cumsum([0, *sizes]), shapes)


def whole(values: np.ndarray) -> Parts:
    return Parts(np.array([0, len(values)]))


def normal(size: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=size).astype(np.float32)
