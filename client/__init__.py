"""A node's side: the ClientApp, local training, the node's own data."""

from task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
