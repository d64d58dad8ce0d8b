"""A layout, updates and steps for tests of sparsifiers."""

import numpy as np

from edgewire.compression.base import Rng, SparsifyContext
from edgewire.compression.layout import Layout
from edgewire.compression.registry import get

LAYOUT = Layout(("conv", "bias", "fc"), ((4, 3, 5, 5), (4,), (20, 30)), ("float32",) * 3)
N = LAYOUT.size


def update(seed=0):
    return np.random.default_rng(seed).standard_t(4, size=N).astype(np.float32)


def make(name, **options):
    return get("sparsifier", name)(**options)


def run(sparsifier, steps, losses=None):
    """Yield (update, selection, the sparsifier's state) for each of `steps` steps."""
    memory = {}
    for number in range(steps):
        loss = None if losses is None else losses[number]
        g = update(number)
        yield g, sparsifier.select(g, SparsifyContext(LAYOUT, memory, Rng(number, 0), loss)), memory
