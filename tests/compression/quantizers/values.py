"""Values for tests of quantizers, also extreme values, and their division into tensors."""

import numpy as np

from edgewire.compression.base import StepContext, TensorSlices
from edgewire.compression.layout import Layout

MOST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)

SPECIAL = {
    "empty": np.zeros(0),
    "one": np.array([0.1]),
    "zeros": np.zeros(300),
    "negative zeros": -np.zeros(300),
    "all negative": -np.linspace(1e-3, 1, 300),
    "all equal": np.full(300, 0.3),
    "subnormal": np.linspace(-1e-40, 1e-40, 300),
    "smallest": np.full(300, LEAST),
    "huge": np.linspace(-3e38, 3e38, 300),
    "largest": np.full(300, MOST),
    "wide": np.geomspace(1e-45, 3e38, 300),
}


def parts_of(*shapes: tuple[int, ...]) -> TensorSlices:
    sizes = [int(np.prod(shape)) for shape in shapes]
    return TensorSlices(np.cumsum([0, *sizes]), shapes)


def selected(*sizes: int) -> TensorSlices:
    return TensorSlices(np.cumsum([0, *sizes]))


def whole(values: np.ndarray) -> TensorSlices:
    return TensorSlices(np.array([0, len(values)]))


def step_of(seed: int, memory: dict[str, np.ndarray] | None = None) -> StepContext:
    """Return a quantizer's context, with this memory or an empty one."""
    return StepContext(Layout((), (), ()), {} if memory is None else memory, (seed, 1))


def normal(size: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=size).astype(np.float32)
