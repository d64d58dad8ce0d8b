"""ClientApps whose reply is a function of the received tensors, and messages to send to them."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from simulation.grid import LocalGrid
from simulation.workers.node_host import NodeHostSpec
from simulation.workers.pool import make_pool

NODES = 3


def moving(train, mod=None, evaluate=None):
    """Return an app that replies with the records that `train(partition, values, state)` makes."""
    app = ClientApp(mods=[mod] if mod else [])

    def answer(function, message, context):
        values = {name: a.numpy() for name, a in message.content["arrays"].items()}
        made = function(context.node_config["partition-id"], values, context.state)
        content = {
            key: ArrayRecord({n: Array(np.asarray(v)) for n, v in record.items()})
            for key, record in made.items()
        }
        content["metrics"] = MetricRecord({"num-examples": 2, "loss": 1.0})
        return Message(RecordDict(content), reply_to=message)

    app.train()(lambda message, context: answer(train, message, context))
    if evaluate:
        app.evaluate()(lambda message, context: answer(evaluate, message, context))
    return app


def to_targets(node, values, state):
    """Move every tensor a tenth of the way to this node's target."""
    moved = {
        name: value + 0.1 * (np.full(value.shape, node + len(name)) - value).astype(value.dtype)
        for name, value in values.items()
    }
    return {"arrays": moved}


def only_of(node, function):
    """Return a training function for `moving`; `function` changes the result of one node."""

    def train(partition, values, state):
        made = to_targets(partition, values, state)
        return {"arrays": function(made["arrays"])} if partition == node else made

    return train


def grid_of(app, nodes=NODES):
    return LocalGrid(make_pool(NodeHostSpec(app, nodes, 1, {}), 1), nodes)


def ask(grid, arrays, kind="train", nodes=None, **config):
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    nodes = nodes or grid.get_node_ids()
    return [Message(content, node, kind, group_id="1") for node in nodes]
