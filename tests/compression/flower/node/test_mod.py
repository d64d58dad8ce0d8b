"""`CompressionMod` decodes the model for a ClientApp and encodes its reply."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from compression import make_codec
from compression.flower import CompressedGrid, CompressionMod, layout_of, payload_record, to_vector
from compression.flower.node.state import MEMORY
from simulation.grid import LocalGrid
from simulation.workers.node_host import NodeHostSpec
from simulation.workers.pool import make_pool
from tests.compression.flower.federation import (
    INT8,
    PLAIN,
    ROUNDS,
    compressed_run,
    initial,
    node_app,
)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_never_leaves_the_node(value, caplog):
    app = ClientApp()

    @app.train(mods=[CompressionMod(INT8)])
    def train(message, context):
        arrays = dict(message.content["arrays"])
        if context.node_config["partition-id"] == 0:
            arrays["conv.bias"] = Array(np.array([1, value, 1, 1], np.float32))
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    got, traffic = compressed_run(FedAvg(fraction_evaluate=0), app)
    assert traffic.failures == ROUNDS
    assert "conv.bias" in caplog.text
    np.testing.assert_allclose(got["conv.bias"], initial()["conv.bias"].numpy(), atol=1e-6)


def test_messages_without_a_payload_pass_through():
    mod, seen = CompressionMod(INT8), []
    message = Message(RecordDict({"arrays": initial(), "config": ConfigRecord()}), 1, "train")
    mod(message, None, lambda m, c: seen.append(m) or m)
    assert seen == [message]


def test_the_mod_does_not_change_the_senders_content():
    record = RecordDict(
        {
            "arrays": payload_record(
                PLAIN.encode(to_vector(initial()), layout_of(initial()), names=True)
            ),
            "config": ConfigRecord(),
        }
    )
    message = Message(record, 1, "train")
    before = record["arrays"]
    pool = make_pool(NodeHostSpec(node_app(CompressionMod(INT8)), 1, 1, {}), 1)
    grid = LocalGrid(pool, 1)
    (reply,) = grid.send_and_receive([message])
    assert not reply.has_error()
    assert record["arrays"] is before


@pytest.mark.parametrize("options", [("topk",), ("esgd",), ("cesgd",), ("dense", "sign")])
def test_a_node_stores_as_many_bytes_as_declared(options):
    """A node stores its codec's state and, if this includes a residual, its last payload."""
    codec = make_codec(*options)
    pool = make_pool(NodeHostSpec(node_app(CompressionMod(codec)), 3, 1, {}), 1)
    compressed = CompressedGrid(LocalGrid(pool, 3))
    FedAvg(fraction_evaluate=0).start(compressed, initial(), num_rounds=4)
    assert compressed.traffic.failures == 0
    payload = compressed.traffic.uplink_bytes / compressed.traffic.client_updates
    for context in pool.contexts.values():
        arrays = context.state[MEMORY].values()
        kept = sum(array.vector.nbytes for array in arrays)
        last = 2 * payload if codec.keeps else 0
        assert codec.memory_bytes(layout_of(initial())) <= kept
        assert kept <= codec.memory_bytes(layout_of(initial())) + last
