"""A node that comes online and goes again, here in this process."""

from deploy.device.client import FleetClient
from deploy.device.membership import Membership
from deploy.node import key_of


class Kitchen:
    """The kitchen's node, for as long as it takes."""

    def __init__(self, server, folder):
        self._fleet = FleetClient(
            server.address, key_of(folder / "nodes" / "kitchen.key"),
            root_certificates=folder / "ca.crt",
        )  # fmt: skip
        self._member = Membership(self._fleet, Nowhere(), registers=False)
        self._member.enter()

    def leave(self):
        self._member.leave()
        self._fleet.close()


class Nowhere:
    """A journal that remembers nothing."""

    def node_id(self, *_):
        return None

    def remember(self, *_):
        pass
