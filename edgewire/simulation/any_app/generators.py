"""Seeds the global random generators, so apps draw the same for any number of workers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded(*entropy: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch (if imported) within this context.

    At the end their earlier states are restored, also those of the GPUs that torch has begun to
    use: `torch.manual_seed` seeds all. `entropy`: integers of at least 0.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what apps draw from
    cpu = torch and torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch and torch.cuda.is_initialized() else []
    first, second, third = np.random.SeedSequence(entropy).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)  # noqa: NPY002
    if torch:
        torch.manual_seed(third)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(cpu)
            torch.cuda.set_rng_state_all(gpus)
