"""A small federation: six nodes with different targets train a model of four tensors."""

import random
from functools import partial

import numpy as np
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.flower import CompressedGrid, Traffic
from edgewire.compression.make import make_codec
from tests.compression.flower.apps import moving, record_of, spoiling, values_of
from tests.grids import grid_of

NODES, ROUNDS = 6, 3
SHAPES = {"conv.weight": (4, 1, 3, 3), "conv.bias": (4,), "scale": (), "fc.weight": (5, 36)}
PLAIN = make_codec(coder="raw")
INT8 = make_codec(quantizer="int8")


def initial():
    rng = np.random.default_rng(0)
    return record_of(
        {n: np.asarray(rng.normal(size=shape), np.float32) for n, shape in SHAPES.items()}
    )


def node_app(mod=None, spoil=None):
    """Return a ClientApp in which every node moves the model towards that node's target."""

    def train(node, values, state):
        moved = {}
        for i, (name, value) in enumerate(values.items()):
            target = np.random.default_rng([node, i]).normal(size=value.shape)
            moved[name] = np.asarray(value + 0.1 * (target - value), np.float32)
        return {"arrays": moved, "metrics": {"num-examples": node + 1, "loss": 1.0 / (node + 1)}}

    def evaluate(node, values, state):
        return {"metrics": {"num-examples": 2, "loss": 1.0 + node}}

    app = moving(train, mod, evaluate)
    return spoiling(app, spoil, node=2) if spoil else app


def run(app, nodes=NODES, strategy=None, rounds=ROUNDS, arrays=None, over=None, **options):
    """Train over a local grid, or over `over(grid)`; return the model. The default is FedAvg."""
    random.seed(1)  # Flower's strategies shuffle the nodes
    grid, strategy = grid_of(app, nodes), strategy or FedAvg(fraction_evaluate=0)
    result = strategy.start(over(grid) if over else grid, arrays or initial(), rounds, **options)
    return values_of(result.arrays)


def compressed_run(
    app, nodes=NODES, strategy=None, rounds=ROUNDS, arrays=None, evaluate_fn=None, **options
):
    """Train over a `CompressedGrid`; return the model and the grid's `Traffic`."""
    traffic = options.setdefault("traffic", Traffic())
    over = partial(CompressedGrid, **options)
    return run(app, nodes, strategy, rounds, arrays, over, evaluate_fn=evaluate_fn), traffic
