"""What runs on the server: the ServerApp, one file a training scheme, and the run's records."""

from task.namesake import take_place

take_place()
