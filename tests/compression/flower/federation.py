"""A small federation: six nodes with different targets train a model of four tensors."""

import random

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from compression import make_codec
from compression.flower import CompressedGrid, Traffic
from simulation.grid import LocalGrid
from simulation.workers.node_host import NodeHostSpec
from simulation.workers.pool import make_pool

NODES, ROUNDS = 6, 3
SHAPES = {"conv.weight": (4, 1, 3, 3), "conv.bias": (4,), "scale": (), "fc.weight": (5, 36)}
PLAIN = make_codec(coder="raw")
INT8 = make_codec(quantizer="int8")


def initial():
    rng = np.random.default_rng(0)
    return ArrayRecord(
        {n: Array(np.asarray(rng.normal(size=shape), np.float32)) for n, shape in SHAPES.items()}
    )


def node_app(mod=None, spoil=None):
    """Return a ClientApp in which every node moves the model towards that node's target."""
    app = ClientApp()

    @app.train(mods=[mod] if mod else [])
    def train(message, context):
        node = context.node_config["partition-id"]
        moved = {}
        for i, (name, array) in enumerate(message.content["arrays"].items()):
            target = np.random.default_rng([node, i]).normal(size=array.shape)
            value = array.numpy()
            moved[name] = Array(np.asarray(value + 0.1 * (target - value), np.float32))
        metrics = {"num-examples": node + 1, "loss": 1.0 / (node + 1)}
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate(mods=[mod] if mod else [])
    def evaluate(message, context):
        metrics = {"num-examples": 2, "loss": 1.0 + context.node_config["partition-id"]}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    if spoil is None:
        return app

    def spoiled(message, context):
        reply = app(message, context)
        return spoil(reply) if context.node_config["partition-id"] == 2 else reply

    return spoiled


def run(strategy, app, nodes=NODES, evaluate_fn=None, arrays=None, rounds=ROUNDS, compressed=None):
    """Train over a local grid, or over `compressed(grid)`; return the model."""
    random.seed(1)  # Flower's strategies shuffle the nodes
    grid = LocalGrid(make_pool(NodeHostSpec(app, nodes, 1, {}), 1), nodes)
    result = strategy.start(
        compressed(grid) if compressed else grid,
        arrays or initial(),
        rounds,
        evaluate_fn=evaluate_fn,
    )
    return {name: array.numpy() for name, array in result.arrays.items()}


def compressed_run(
    strategy, app, nodes=NODES, evaluate_fn=None, arrays=None, rounds=ROUNDS, **options
):
    """Train over a `CompressedGrid`; return the model and the grid's `Traffic`."""
    traffic = options.setdefault("traffic", Traffic())
    model = run(
        strategy,
        app,
        nodes,
        evaluate_fn,
        arrays,
        rounds,
        lambda grid: CompressedGrid(grid, **options),
    )
    return model, traffic
