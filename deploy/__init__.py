"""Real devices: the node on a device, the server that they reach."""
