"""A node in this process that comes online and leaves again."""

from pathlib import Path

from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.node import key_of


class Kitchen:
    """A node with the key `kitchen` that is online until `leave` is called."""

    def __init__(self, server, folder, node_folder=None):
        self._fleet = FleetClient(
            server.address, key_of(folder / "nodes" / "kitchen.key"),
            root_certificates=folder / "ca.crt",
        )  # fmt: skip
        self._member = Membership(self._fleet, node_folder or Nowhere(), registers=False)
        self._member.enter()

    def leave(self):
        self._member.leave()
        self._fleet.close()


class Nowhere:
    """A node folder that stores nothing."""

    folder = Path("/nowhere")

    def remember(self, *_):
        pass
