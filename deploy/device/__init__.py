"""The node on a device: its loop, its folder, its client of the server."""
