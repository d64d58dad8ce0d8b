"""The ClientApp of the bundle that nodes get.

Flower's simulation imports both apps in two threads. One thread must not look for a subpackage
while the other one is within `edgewire/__init__.py`, which makes subpackages findable. The import
of `edgewire` waits for the other thread.
"""

import edgewire  # noqa: F401
from edgewire.client.app import app

__all__ = ["app"]  # Flower looks for the name without an import
