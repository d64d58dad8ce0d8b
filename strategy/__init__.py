"""The server: the ServerApp, and one file a strategy (a YAML in conf/strategy/ names it)."""

from task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
