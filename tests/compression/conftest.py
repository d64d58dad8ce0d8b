"""Fixtures: layouts of models, and updates for them."""

from collections.abc import Callable

import numpy as np
import pytest

from edgewire.compression.layout import Layout

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
    """Return a small layout with a 0-d tensor, an empty tensor, several dtypes, non-ASCII names."""
    return Layout(
        ("conv.weight", "bn.num_batches_tracked", "leer", "größe", "fc.weight"),
        ((4, 3, 3, 3), (), (0, 7), (5,), (11, 13)),
        ("float32", "int64", "float32", "float16", "float32"),
    )


@pytest.fixture(scope="session")
def update_for() -> Callable[[Layout], np.ndarray]:
    """Return a function that makes a heavy-tailed update; its tensors differ in scale."""

    def make(layout: Layout) -> np.ndarray:
        draw = np.random.default_rng(7)
        values = draw.standard_t(3, size=layout.size) * 1e-3
        sizes = 10.0 ** (np.arange(len(layout)) % 4)
        return (values * np.repeat(sizes, np.diff(layout.offsets))).astype(np.float32)

    return make
