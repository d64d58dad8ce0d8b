"""DGC: its algorithm step by step, and the layers that it makes sparse."""

import numpy as np
import pytest

from edgewire.compression.per_tensor import count
from edgewire.compression.sparsifiers.dgc import WARMUP
from tests.compression.sparsifiers.steps import LAYOUT, N, make, run


@pytest.mark.parametrize("masked_from", [0.99, 0.9, 1])
def test_dgc_follows_its_algorithm(masked_from):
    options = {
        "sparsity": 0.995,
        "warmup_steps": 8,
        "momentum": 0.8,
        "clip_norm": 2.0,
        "workers": 4,
        "masked_from": masked_from,
    }
    sparsifier = make("dgc", **options)
    u, v = np.zeros(N), np.zeros(N)
    for number, (g, (indices, values, _), memory) in enumerate(run(sparsifier, 11)):
        clipped = g * min(1, 2.0 * 4**-0.5 / np.linalg.norm(g))
        u = 0.8 * u + clipped
        v = v + u
        sparsity = min(WARMUP[number // 2], 0.995) if number < 8 else 0.995
        expected = []
        for tensor, (start, stop) in enumerate(
            zip(LAYOUT.offsets[:-1], LAYOUT.offsets[1:], strict=True)
        ):
            k = stop - start if tensor == 1 else count(1 - sparsity, stop - start)
            expected += (start + np.argsort(-np.abs(v[start:stop]))[:k]).tolist()
        np.testing.assert_array_equal(indices, np.sort(expected))
        np.testing.assert_allclose(values, v[indices], rtol=1e-5, atol=1e-6)
        v[indices] = 0
        if sparsity >= masked_from:
            sparse = np.setdiff1d(indices, np.arange(*LAYOUT.offsets[1:3]))
            u[sparse] = 0
        np.testing.assert_allclose(memory["velocity"], v, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(memory["momentum"], u, rtol=1e-5, atol=1e-6)


def test_dgc_of_convolutions_only():
    _, (indices, _, _), _ = next(run(make("dgc", sparsity=0.99, layers="conv"), 1))
    assert np.diff(np.searchsorted(indices, LAYOUT.offsets)).tolist() == [3, 4, 600]


def test_two_dgc_variants_in_one_process_do_not_affect_each_other():
    def sent(layers):
        return next(run(make("dgc", sparsity=0.993, layers=layers), 1))[1][0]

    alone = sent("all")
    assert len(sent("conv")) > len(alone)
    np.testing.assert_array_equal(sent("all"), alone)
