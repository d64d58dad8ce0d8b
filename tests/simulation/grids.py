"""Nodes that report the received messages; functions that make messages and read replies."""

import gc
import os
import signal
import time
import tracemalloc
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

NODES = 7
FORKED_SECONDS = 30  # the lifetime of a forked process
app = ClientApp()


@app.train()
def counting(message, context):
    """Reply with the partition, the number of its messages so far, and a copy of the arrays."""
    config = context.state.config_records.get("memory", ConfigRecord({"calls": 0}))
    config["calls"] = int(config["calls"]) + 1
    context.state["memory"] = config
    partition = context.node_config["partition-id"]
    if message.content["config"].get("raise-at") == partition:
        raise RuntimeError("no power")
    if message.content["config"].get("end-at") == partition:
        signal.raise_signal(signal.SIGTERM)
    if message.content["config"].get("fork-at") == partition:
        fork(str(message.content["config"]["note"]))
    if message.content["config"].get("die-at") == partition:
        os.kill(os.getpid(), signal.SIGKILL)
    match message.content["config"].get("returns"):
        case "nothing":
            return None
        case "its message":
            return message
        case "a dict":
            return with_any(message, {"metrics": MetricRecord({"loss": 0.5})})
        case "a record of no kind":
            return with_any(message, RecordDict(), {"metrics": 0.5})
        case "what cannot be pickled":
            return with_any(message, RecordDict(), {"config": ConfigRecord()}, lambda: None)
    metrics = {"partition": partition, "calls": int(config["calls"]), "num-steps": partition + 1}
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


def with_any(message, content, records=None, value=None):
    """Return a reply whose content, records or value Flower's checks would refuse."""
    reply = Message(RecordDict(), reply_to=message)
    if records is not None:
        vars(content)["_data"] = records
    if value is not None:
        vars(records["config"])["_data"] = {"value": value}
    vars(reply)["_content"] = content
    return reply


def fork(note):
    """Fork a process that stays, as a DataLoader may; write its id into a file."""
    if child := os.fork():
        Path(note).write_text(str(child))
        return
    time.sleep(FORKED_SECONDS)
    os._exit(0)


@app.query()
def heavy(message, context):
    """Reply with as many bytes as the message holds, in one value and in many small arrays."""
    size = len(message.content["config"]["bytes"])
    arrays = {str(i): Array("uint8", (1000,), "test", bytes(1000)) for i in range(size // 1000)}
    content = {"arrays": ArrayRecord(arrays), "config": ConfigRecord({"bytes": bytes(size)})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def stateless(message, context):
    """Store no state; add a record to the content that other messages share."""
    seen = "mark" in message.content
    message.content["mark"] = ConfigRecord({"x": 1})
    metrics = MetricRecord({"seen": int(seen), "partition": context.node_config["partition-id"]})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def messages(grid, kind="train", size=50_000, **config):
    data = np.arange(size, dtype=np.uint8).tobytes()
    arrays = ArrayRecord({"payload": Array("uint8", (size,), "test", data)})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    return [Message(content, dst_node_id=n, message_type=kind) for n in grid.get_node_ids()]


def seen(replies):
    return [
        (r.metadata.src_node_id, "error")
        if r.has_error()
        else (
            r.metadata.src_node_id,
            dict(r.content["metrics"]),
            r.content["arrays"]["payload"].data,
        )
        for r in replies
    ]


def sources(replies):
    return [r.metadata.src_node_id for r in replies]


def growth(work, times=60):
    """Return how many bytes each call leaves allocated, after the first calls have filled caches.

    The smaller of two measurements counts, because another thread may allocate during one of them.
    """
    after = []
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(times):
                work()
            gc.collect()
            after.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return min(np.diff(after)) / times
