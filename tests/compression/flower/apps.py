"""ClientApps whose reply is a function of the received tensors, and messages to send to them."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

NODES = 3


def record_of(values):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def values_of(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


def vector(seed):
    """Return a record of 5,000 random entries."""
    return record_of({"w": np.random.default_rng(seed).normal(size=5000).astype(np.float32)})


def counted(state):
    """Count a node's messages in the node's state; return the count."""
    state["count"] = ConfigRecord({"n": state["count"]["n"] + 1 if "count" in state else 1})
    return state["count"]["n"]


def moving(train, mods=None, evaluate=None):
    """Return an app that replies with the records that `train(partition, values, state)` makes.

    `mods`: one mod, or a list. The record "metrics" has a default.
    """
    app = ClientApp(mods=mods if isinstance(mods, list) else [mods] if mods else [])

    def answer(function, message, context):
        values = values_of(message.content["arrays"])
        made = function(context.node_config["partition-id"], values, context.state)
        metrics = made.pop("metrics", {"num-examples": 2, "loss": 1.0})
        content = {key: record_of(values) for key, values in made.items()}
        content["metrics"] = MetricRecord(metrics)
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


def same(node, values, state):
    return {"arrays": values}


def spoiling(app, spoil, node=0):
    """Return the app with replies of one node, given by its partition, changed by `spoil`."""

    def answer(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == node:
            spoil(reply)
        return reply

    return answer


def ask(grid, arrays, kind="train", nodes=None, **config):
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    nodes = nodes or grid.get_node_ids()
    return [Message(content, node, kind, group_id="1") for node in nodes]


def replies_to(compressed, arrays, *options, **config):
    """Ask nodes as `ask` does; return their replies."""
    return list(compressed.send_and_receive(ask(compressed, arrays, *options, **config)))


def left_out(replies):
    """Return the nodes whose replies were left out."""
    return [reply.metadata.src_node_id for reply in replies if reply.has_error()]
