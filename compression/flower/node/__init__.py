"""The node's end: a mod for its ClientApp, and the node's state between messages."""
