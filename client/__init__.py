"""What runs on a device: the ClientApp, local training, the node's own data."""

from task.namesake import take_place

take_place()
