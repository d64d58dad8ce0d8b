"""After any strategy, BatchNorm's statistics lie within the range that the nodes reported."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.compression.flower import CompressionMod, StatisticsAveraging
from edgewire.compression.flower.server.statistics_averaging import mean, median
from tests.compression.flower.apps import moving, record_of
from tests.compression.flower.federation import INT8, compressed_run
from tests.compression.flower.server.test_compressed_grid import STRATEGIES

NODES, ROUNDS, SIZE = 6, 4, 5
MOD = CompressionMod(INT8)
INITIAL = {
    "weight": np.ones((SIZE, 3), np.float32),
    "bn.running_mean": np.zeros(SIZE, np.float32),
    "bn.running_var": np.ones(SIZE, np.float32),
}


def run(strategy, seed, scale):
    """Train; return each round's variances, and the lowest and highest that nodes reported."""
    reported, found, draw = [INITIAL["bn.running_var"]], [], np.random.default_rng(seed)

    def train(node, values, state):
        reported.append((scale ** draw.normal(size=SIZE)).astype(np.float32))
        weight = draw.normal(size=(SIZE, 3)).astype(np.float32)
        return {"arrays": {**values, "bn.running_var": reported[-1], "weight": weight}}

    def weigh(message, context, call_next):
        reply = call_next(message, context)
        reply.content["metrics"]["num-examples"] = int(draw.integers(1, 100))
        return reply

    app = moving(train, [weigh, MOD])
    compressed_run(
        app, NODES, StatisticsAveraging(strategy), ROUNDS, record_of(INITIAL),
        evaluate_fn=lambda r, arrays: found.append(arrays["bn.running_var"].numpy()),
    )  # fmt: skip
    return found, np.min(reported, axis=0), np.max(reported, axis=0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_variance_leaves_the_reported_range(name):
    for seed, scale in ((0, 1.5), (1, 100.0)):
        found, low, high = run(STRATEGIES[name](), seed, scale)
        for variance in found:
            assert (variance >= low).all()
            assert (variance <= high).all()


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), nodes=st.integers(1, 7))
def test_a_mean_is_within_the_reported_range(data, nodes):
    values = [
        np.array(data.draw(st.lists(finite, min_size=3, max_size=3)), np.float32)
        for _ in range(nodes)
    ]
    positive = st.floats(1e-3, 1e6)
    weights = data.draw(st.lists(positive, min_size=nodes, max_size=nodes))
    mixed = mean(values, weights)
    assert mixed.dtype == np.float32
    assert (mixed >= np.min(values, axis=0)).all()
    assert (mixed <= np.max(values, axis=0)).all()
    expected = np.average(np.array(values, np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e24)
    chosen = median(values)
    assert all(any(chosen[i] == value[i] for value in values) for i in range(3))


@pytest.mark.parametrize("kind", ["int64", "uint64", "int8"])
def test_integers_that_all_nodes_report_alike_stay(kind):
    info = np.iinfo(kind)
    value = np.array([info.min, info.max, info.max - 1, 1], dtype=kind)
    np.testing.assert_array_equal(mean([value] * 3, [0.1, 0.7, 3.0]), value)
