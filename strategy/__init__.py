"""The server: the ServerApp, and the strategies that the YAML files in conf/strategy/ name."""

from edgewire.task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
