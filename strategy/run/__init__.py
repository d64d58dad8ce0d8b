"""The run around a strategy: its records, checkpoints, nodes and shutdown."""
