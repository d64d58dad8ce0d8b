"""Measures round trips per second of an echo ClientApp on the local engine."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool

app = ClientApp()


@app.train()
def echo(message: Message, context: Context) -> Message:
    """Reply with a copy of the array, because a real reply has new bytes, too."""
    array = message.content.array_records["arrays"]["payload"]
    data = bytes(bytearray(array.data))
    arrays = ArrayRecord({"payload": Array("uint8", array.shape, "echo", data)})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def echo_local(
    nodes: int = 10, size: int = 850_000, seconds: float = 3.0, workers: int = 1
) -> float:
    """Return the round trips per second with `size` bytes each way, over at least `seconds`."""
    data = np.random.default_rng(0).integers(0, 255, size, np.uint8).tobytes()
    pool = make_pool(NodeHostSpec(app, nodes, 1, {}), workers)
    grid, rounds = LocalGrid(pool, nodes), 0
    try:
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            arrays = ArrayRecord({"payload": Array("uint8", (size,), "echo", data)})
            content = RecordDict({"arrays": arrays})
            messages = [
                Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
                for node in grid.get_node_ids()
            ]
            replies = grid.send_and_receive(messages)
            if len(replies) != nodes or any(reply.has_error() for reply in replies):
                raise RuntimeError("a reply is missing")
            rounds += 1
    finally:
        pool.close()
    return rounds * nodes / spent
