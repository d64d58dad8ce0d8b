"""A node (`deploy.node`) that appends a line of JSON to the file $EDGEWIRE_TIMED for each reply."""

from __future__ import annotations

import json
import os
import time

from flwr.proto.fleet_pb2 import PushMessagesResponse

from edgewire.deploy import node
from edgewire.deploy.device.client import FleetClient


class Timed(FleetClient):
    """A client that records the seconds and the bytes of each reply that it sends."""

    def push(self, bundle: bytes) -> PushMessagesResponse:
        """Send a reply and record it."""
        began = time.monotonic()
        response = super().push(bundle)
        line = {"seconds": time.monotonic() - began, "bytes": len(bundle)}
        with open(os.environ["EDGEWIRE_TIMED"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return response


if __name__ == "__main__":
    node.FleetClient = Timed  # type: ignore[attr-defined]
    node.main()
