"""A node's state folder: the node's identity, its current message, and its state of each run.

lock                locked while a node uses this folder
key                 the node's own private key, if no key is given on the command line
node.json           the server's address, the public key, and the node's id at that server
node.db, arrays/    the current message, its deaths, the states of runs (`node_database.py`)
apps/HASH/          an unpacked app (`apps.py`)

The first three files survive when the database is lost. `edgewire.deploy.doctor` reads the key and
changes nothing; SQLite would write to the folder for a reader, too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesResponse
from google.protobuf.message import DecodeError

from edgewire.deploy.certificates import new_key, private_key
from edgewire.deploy.device.node_database import NodeDatabase, locked, write_file
from edgewire.deploy.device.node_store import NodeStore, open_node_store
from edgewire.machine.errors import UsageError

MOST_RUNS = 16  # stored runs
_CLAIM = "claim"  # the record with the current message; a run's id names the run's record


class NodeFolder:
    """The state folder of one node. Raises `UsageError` if it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = locked(folder, f"another node runs on --state {folder}: give each its own")
        try:
            self.database = NodeDatabase(folder)
        except OSError as error:
            raise UsageError(f"--state {folder} cannot be used: {error.strerror}") from error
        self._node_stores: dict[int, NodeStore] = {}

    def close(self) -> None:
        """Close the database, and unlock the folder for another node."""
        self.database.close()
        self._lock.close()

    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the private key in the folder; make a key if the folder has none."""
        file = self.folder / "key"
        if not file.exists():
            write_file(file, new_key()[0])
        return private_key(file)

    # who this node is

    def remember(self, server: str, public_key: bytes, node_id: int) -> None:
        """Store the id that this server has given to the node with this key, for `known_id`."""
        said = {"server": server, "key": public_key.hex(), "node": node_id}
        write_file(self.folder / "node.json", json.dumps(said).encode())

    def known_id(self, server: str, public_key: bytes) -> int | None:
        """Return the id of the node with a key at a server; None if the folder has none.

        `server`: host:port; `public_key`: in PEM.
        """
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads((self.folder / "node.json").read_text())
            if (said["server"], said["key"]) == (server, public_key.hex()):
                return int(said["node"])
        return None

    # the current message

    def claim(self, response: PullMessagesResponse) -> None:
        """Write a pulled message to disk. It is durable when this method returns."""
        self.database.write(_CLAIM, response.SerializeToString())

    def claimed(self) -> PullMessagesResponse | None:
        """Return the message that `claim` wrote last; None if there is none, or if it is damaged.

        This project's server sends the message again then.
        """
        try:
            response = PullMessagesResponse.FromString(self.database.read(_CLAIM) or b"")
        except (OSError, ValueError, DecodeError):
            return None
        return response if len(response.messages_list) == 1 else None

    # the state of runs

    def node_store(self, series: int) -> NodeStore:
        """Return the store of a run, or of a series of runs that share their state."""
        if series not in self._node_stores:
            while len(self._node_stores) >= 2:
                del self._node_stores[next(iter(self._node_stores))]
            self._node_stores[series] = open_node_store(self.database, str(series))
            self._forget()
        return self._node_stores[series]

    def _forget(self) -> None:
        """Remove the oldest stores beyond `MOST_RUNS`."""
        stored = [name for name in self.database.names() if name.isdecimal()]
        for name in set(stored[MOST_RUNS:]) - set(map(str, self._node_stores)):
            self.database.remove(name)
