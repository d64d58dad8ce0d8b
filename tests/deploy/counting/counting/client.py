"""A ClientApp that replies with its message count and a sum that depends on rounding."""

import hashlib
import os
import signal
import sys
import time

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train("count")
def count(message: Message, context: Context) -> Message:
    state = context.state
    number = int(state["counted"]["number"]) + 1 if "counted" in state else 1
    total = state["kept"]["total"].numpy() if "kept" in state else 0.0
    total = (total + message.content["arrays"]["x"].numpy()) / 3
    state["counted"] = MetricRecord({"number": number})
    state["kept"] = ArrayRecord({"total": Array(total)})
    if pause := float(context.node_config.get("pause", 0)):
        time.sleep(pause)
    metrics = MetricRecord({"number": number, "total": float(total.sum()), "process": os.getpid()})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.train("fail")
def fail(message: Message, context: Context) -> Message:
    raise ZeroDivisionError("on purpose")


@app.train("hide")
def hide(message: Message, context: Context) -> Message:
    """Reply with a secret, which the node must not write to its disk."""
    secret = hashlib.sha256(message.content["arrays"]["x"].data).digest()
    context.state["edgewire-volatile"] = ConfigRecord({"unstored": True, "secret": secret})
    return Message(RecordDict({"told": ConfigRecord({"secret": secret})}), reply_to=message)


@app.train("exit")
def leave(message: Message, context: Context) -> Message:
    sys.exit("on purpose")


@app.train("die")
def die(message: Message, context: Context) -> Message:
    """End the process as the kernel does if memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
