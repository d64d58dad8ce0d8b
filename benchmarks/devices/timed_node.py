"""`python -m deploy.node`, with a line of JSON in the file $EDGEWIRE_TIMED for each reply sent."""

from __future__ import annotations

import json
import os
import time

from flwr.proto.fleet_pb2 import PushMessagesResponse

from deploy.device.client import FleetClient
from deploy.node import main


class Timed(FleetClient):
    """Notes how long a reply takes to be sent and taken, and its bytes."""

    def push(self, bundle: bytes) -> PushMessagesResponse:
        """Send a reply, as ever."""
        began = time.monotonic()
        response = super().push(bundle)
        line = {"seconds": time.monotonic() - began, "bytes": len(bundle)}
        with open(os.environ["EDGEWIRE_TIMED"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return response


if __name__ == "__main__":
    main(client=Timed)
