"""The responses to nodes that download an app. Each is made once, because many nodes want it.

Flower's handler would copy the app's 2 MB for each node, and its response would be compressed for
each node.
"""

from __future__ import annotations

import gzip
import threading
from typing import Any

from flwr.proto.fab_pb2 import GetFabRequest
from flwr.supercore.fab import Fab
from flwr.superlink.servicer.fleet import fleet_handlers as fleet

MOST = 4  # responses that are kept: of one or two apps, as they are and compressed


class AppDownloads:
    """The serialized responses to Flower's call `get-fab`; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, bool], bytes] = {}  # the oldest first

    def response(self, zipped: bool, request: GetFabRequest, state: Any) -> bytes:
        """Return the response to a node's request, compressed by gzip if `zipped`.

        Raises the `FlowerError` of Flower's handler for a node that may not have the app.
        """
        empty: Any = _WithoutApps(state)
        fleet.get_fab(request, empty)  # it checks the request
        key = request.hash_str, zipped
        with self._lock:
            if key not in self._made:
                made = fleet.get_fab(request, state).SerializeToString()
                self._made[key] = gzip.compress(made, mtime=0) if zipped else made
                if len(self._made) > MOST:
                    del self._made[next(iter(self._made))]
            return self._made[key]


class _WithoutApps:
    """A SuperLink's state, in which each app has no content."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_fab(self, digest: str) -> Fab:
        return Fab(digest, b"", {})
