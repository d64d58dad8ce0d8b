"""The processes that answer for nodes: their pool, the messages that wait, the way there."""
