"""A ServerApp that asks each node in every round and writes the replies to a file."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    while len(nodes := sorted(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.05)
    said = []
    for number in range(config["rounds"]):
        arrays = ArrayRecord({"x": Array(np.full(5000, number + 0.1))})
        content = RecordDict({"arrays": arrays})
        kind = f"train.{config['kind']}"
        waiting = set(grid.push_messages([Message(content, node, kind) for node in nodes]))
        while waiting:
            for reply in grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    said.append([reply.metadata.src_node_id, reply.error.code, reply.error.reason])
                else:
                    metrics = dict(reply.content["metrics"])
                    said.append([reply.metadata.src_node_id, metrics["number"], metrics["total"]])
            time.sleep(0.01)
    Path(config["out"]).write_text(json.dumps(said))
