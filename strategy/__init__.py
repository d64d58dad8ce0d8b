"""What runs on the server: the ServerApp, one file a training scheme, and the run's records."""

from task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
