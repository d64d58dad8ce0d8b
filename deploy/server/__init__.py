"""The server that devices reach: Flower's SuperLink, and what stands before it."""
