"""The identity of a node in a run, from Flower's `node_config`."""

from dataclasses import dataclass

from flwr.app import Context

from edgewire.task.errors import TaskError


@dataclass(frozen=True)
class Node:
    """The identity of a node in a run.

    `index`: the number of the node's partition, 0 to `count` - 1. It is the same on every engine,
    whereas Flower's node ids are random. `folder`: on a real device, the folder or file with
    the node's own data. `secret`: changes what layers draw (`SecureMod`).
    """

    index: int
    count: int
    folder: str | None = None
    secret: int = 0


def node_of(context: Context) -> Node:
    """Read `partition-id`, `num-partitions` and `data` from the node's configuration.

    Raises `TaskError` if the configuration has neither `partition-id` nor `data`.
    """
    config = context.node_config
    folder = str(config["data"]) if "data" in config else None
    if folder is None and "partition-id" not in config:
        raise TaskError(
            "this node has no data: start it with --node-config 'data=\"/its/folder\"' "
            "or with 'partition-id=0 num-partitions=10'"
        )
    index = int(config.get("partition-id", context.node_id))
    return Node(index, int(config.get("num-partitions", 1)), folder)
