"""What runs on a device: the ClientApp, local training, the node's own data."""

from task.stdlib_collision import take_place

take_place()
