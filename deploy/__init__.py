"""Real devices: the server and its gate, keys, and what runs on a device."""
