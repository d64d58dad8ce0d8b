"""The node's place in the run, from Flower's `node_config`."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Context


@dataclass(frozen=True)
class Node:
    """A node's place in the run.

    `index`: its partition, 0 to `count` - 1, the same on every engine (Flower's node ids are
    random). `folder`: the folder with its own data, a folder for each class, on a real device.
    """

    index: int
    count: int
    folder: str | None = None


def node_of(context: Context) -> Node:
    """Read `partition-id`, `num-partitions` and `data` from the node's configuration.

    Raises `ValueError` if it names neither a partition nor a folder.
    """
    config = context.node_config
    folder = str(config["data"]) if "data" in config else None
    if folder is None and "partition-id" not in config:
        raise ValueError(
            "this node has no data: start it with --node-config 'data=\"/its/folder\"' "
            "or with 'partition-id=0 num-partitions=10'"
        )
    index = int(config.get("partition-id", context.node_id))
    return Node(index, int(config.get("num-partitions", 1)), folder)
