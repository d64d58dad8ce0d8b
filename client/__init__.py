"""The code of a node: the ClientApp, local training, the node's data."""

from edgewire.task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
