"""`CompressionMod` decodes the model for a ClientApp and encodes its reply."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.flower import (
    CompressedGrid,
    CompressionMod,
    layout_of,
)
from edgewire.compression.flower.node.state import MEMORY
from edgewire.compression.make import make_codec
from edgewire.simulation.grid import LocalGrid
from tests.compression.flower.apps import moving, record_of
from tests.compression.flower.federation import (
    INT8,
    ROUNDS,
    compressed_run,
    initial,
    node_app,
)
from tests.grids import pool_of


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_update_that_is_not_finite_never_leaves_the_node(value, dtype, caplog):
    def train(node, values, state):
        return {"arrays": {"w": np.array([1, value if node == 0 else 1], dtype)}}

    app, start = moving(train, CompressionMod(INT8)), record_of({"w": np.ones(2, dtype)})
    model, traffic = compressed_run(app, arrays=start)
    assert traffic.failures == ROUNDS
    assert "in w" in caplog.text
    np.testing.assert_array_equal(model["w"], [1, 1])


@pytest.mark.parametrize("options", [("topk",), ("esgd",), ("cesgd",), ("dense", "sign")])
def test_a_node_stores_as_many_bytes_as_declared(options):
    """A node stores its codec's state and, if this includes a residual, its last payload."""
    codec = make_codec(*options)
    pool = pool_of(node_app(CompressionMod(codec)), 3)
    compressed = CompressedGrid(LocalGrid(pool, 3))
    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=4)
    assert compressed.traffic.failures == 0
    payload = compressed.traffic.uplink_bytes / compressed.traffic.client_updates
    for state in pool.states().values():
        arrays = state[MEMORY].values()
        kept = sum(array.vector.nbytes for array in arrays)
        last = 2 * payload if codec.keeps else 0
        assert codec.memory_bytes(layout_of(initial())) <= kept
        assert kept <= codec.memory_bytes(layout_of(initial())) + last
