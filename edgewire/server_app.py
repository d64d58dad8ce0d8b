"""The ServerApp of the bundle that nodes get; `edgewire.client_app` says why it is a module."""

import edgewire  # noqa: F401
from edgewire.strategy.app import app

__all__ = ["app"]  # Flower looks for the name without an import
