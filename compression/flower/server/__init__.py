"""The server's end: what each node has, what it is sent, which of its replies are of use."""
