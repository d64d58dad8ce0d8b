"""What runs on the server: the ServerApp, one file a training scheme, and the run's records."""

from task.stdlib_collision import take_place

take_place()
