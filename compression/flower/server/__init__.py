"""The server's side of the compression: the nodes' versions, the messages, and the replies."""
