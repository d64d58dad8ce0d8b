"""What runs on a device: the ClientApp, local training, the node's own data."""
