"""A segment of a cut model on a node: its steps, its state between messages."""
