"""The node's side of the compression: a mod for its ClientApp, and its state between messages."""
