"""The server: the ServerApp, the strategies (one file each), and the run's records."""

from task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
