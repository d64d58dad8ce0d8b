"""The ServerApp, which times rounds of `Grid.send_and_receive` over all nodes."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Count round trips for `seconds`, then write `{"trips": .., "seconds": ..}` to `result`."""
    config = context.run_config
    count, seconds = int(config["nodes"]), float(config["seconds"])
    payload = np.random.default_rng(0).integers(0, 256, int(config["size"]), dtype=np.uint8)
    content = RecordDict({"payload": ArrayRecord({"blob": Array(payload)}), "x": ConfigRecord()})

    while len(nodes := sorted(grid.get_node_ids())) < count:  # nodes register meanwhile
        time.sleep(0.05)
    _round(grid, content, nodes)
    trips, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        trips += _round(grid, content, nodes)
    Path(str(config["result"])).write_text(json.dumps({"trips": trips, "seconds": elapsed}))


def _round(grid: Grid, content: RecordDict, nodes: list[int]) -> int:
    messages = [Message(content, node, MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(messages))
    if len(replies) != len(nodes) or any(reply.has_error() for reply in replies):
        raise RuntimeError("an echo did not come back")
    return len(replies)
