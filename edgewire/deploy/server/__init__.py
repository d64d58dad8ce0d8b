"""The server for devices: Flower's SuperLink, wrapped in this project's ASGI middleware."""
