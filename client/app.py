"""The ClientApp: one message in, local training or evaluation, one reply out."""

from __future__ import annotations

import time
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from client.node import Node, node_of
from client.segment import segments_for
from client.trainer import Trainer, trainer_for
from client.worker import worker_for
from compression.flower import flat_record, to_vector
from conf import load_config

app = ClientApp()


def _trainer(context: Context) -> tuple[Trainer, Node]:
    """Return this process's trainer for the run's configuration (built once), and the node."""
    node = node_of(context)
    return trainer_for(load_config(context.run_config, node.count), node.folder), node


def compression(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Apply the configured `CompressionMod`."""
    trainer, _ = _trainer(context)
    return trainer.mod(message, context, call_next)


@app.train(mods=[compression])
def train(message: Message, context: Context) -> Message:
    """Train from the received model; reply the new one (the mod makes it a compressed delta).

    Reads `server-round`, `lr` and, for FedProx, `proximal-mu` from the message's ConfigRecord.
    """
    start = time.perf_counter()
    trainer, node = _trainer(context)
    config = cast(ConfigRecord, message.content["config"])
    vector, metrics = trainer.train(
        node,
        to_vector(cast(ArrayRecord, message.content["arrays"])),
        server_round=cast(int, config["server-round"]),
        lr=cast(float, config["lr"]),
        proximal_mu=cast(float, config.get("proximal-mu", 0.0)),
    )
    metrics["seconds"] = time.perf_counter() - start
    content = RecordDict({"arrays": flat_record(vector), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


@app.train("step")
def step(message: Message, context: Context) -> Message:
    """Answer a server of ours, synchronous or not, with an update (`client.worker`)."""
    trainer, node = _trainer(context)
    return worker_for(trainer).step(message, node, context)


@app.train("segment")
def segment(message: Message, context: Context) -> Message:
    """Train a segment of a cut model (`client.segment`)."""
    node = node_of(context)
    return segments_for(load_config(context.run_config, node.count), node.folder).answer(
        message, context
    )


@app.evaluate(mods=[compression])
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on the node's held-back samples (all of them if none are)."""
    trainer, node = _trainer(context)
    metrics = trainer.evaluate(node, to_vector(cast(ArrayRecord, message.content["arrays"])))
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
