"""The node's end: a mod for its ClientApp, and what it keeps between messages."""
