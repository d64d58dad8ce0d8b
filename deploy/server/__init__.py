"""The server that devices connect to: Flower's SuperLink behind this project's ASGI wrappers."""
